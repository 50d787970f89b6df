"""The seam of features: which are imported, where their steps stand, and what each has to answer."""

from __future__ import annotations

import subprocess
import sys

import pytest

from gateway.cache.stored_parts import TRAFFIC, StoredPart, UnreachedPart
from gateway.config.policy.features import FEATURES
from gateway.context import RequestState
from gateway.feature import Feature, Runtime, Unsupported, all_features, stored_parts_of
from gateway.features.mcp.feature import Mcp
from gateway.pipeline import PER_ROUTE, Place
from tests.contracts.test_backend import request_of

ALL = list(all_features())


class Steps(RequestState):
    """The state of a feature that counts its steps."""

    def __init__(self) -> None:
        self.count = 0


class Words(RequestState):
    """The state of another feature."""

    def __init__(self) -> None:
        self.words: list[str] = []


def test_a_request_has_one_state_for_each_feature_that_needs_one() -> None:
    request = request_of()
    request.of(Steps).count += 2
    request.of(Words).words.append("a")
    assert (request.of(Steps).count, request.of(Words).words) == (2, ["a"])
    assert request_of().of(Steps).count == 0


def test_work_on_behalf_of_a_request_changes_no_state_of_it() -> None:
    request = request_of()
    request.of(Steps).count = 1
    child = request.child("shadow")
    child.of(Steps).count = 5
    child.of(Words)
    assert (request.of(Steps).count, child.of(Steps).count) == (1, 5)


@pytest.mark.parametrize("feature", ALL, ids=lambda feature: feature.key)
def test_a_feature_has_the_key_under_which_it_is_found(feature: Feature) -> None:
    assert FEATURES.load(feature.key) is feature
    assert feature.summary.endswith(".")


@pytest.mark.parametrize("feature", ALL, ids=lambda feature: feature.key)
def test_a_feature_that_does_not_answer_says_why(feature: Feature) -> None:
    for answer in (feature.stores, feature.simulate()):
        assert not isinstance(answer, Unsupported) or len(answer.reason.split()) > 3


class Storing(Runtime):
    """The shared parts of a feature that stores something."""

    def stored_parts(self) -> list[StoredPart]:
        return [UnreachedPart(TRAFFIC, exists=True)]


class Forgetful(Mcp):
    """A feature that declares what it stores."""

    stores = (TRAFFIC,)


def test_a_feature_that_forgets_an_object_for_what_it_stores_is_refused() -> None:
    assert [each.part for each in stored_parts_of(Forgetful(), Storing())] == [TRAFFIC]
    with pytest.raises(ValueError, match=r"one object for each stored part of cache\.mcp"):
        stored_parts_of(Forgetful(), Runtime())


def test_every_step_of_a_feature_has_a_place_in_the_pipeline() -> None:
    places = [step for step in PER_ROUTE if isinstance(step, Place)]
    assert sorted(places) == sorted(Place), "each place once"
    assert {step.place for feature in ALL for step in feature.steps} <= set(places)


def test_what_no_policy_uses_is_not_imported() -> None:
    program = (
        "import sys, gateway.app, gateway.cli.serve\n"
        "from gateway.config.policy.features import FEATURES\n"
        "print(*sorted({value.partition(':')[0] for value in FEATURES.own.values()} & sys.modules.keys()))"
    )
    imported = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert imported.stdout.split() == []
