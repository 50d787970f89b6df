"""What one gateway learns the others learn, and a start finds all of it. Pure parts first, then real gateways."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.cache.threshold.ledger import BANDS
from gateway.cache.threshold.route_control import LearningEvent, Observation, RouteControl
from gateway.cache.threshold.wrong_hits import Label
from gateway.features.replicas.gossip import Gossip
from gateway.ports import Acceptance, ChangeKind, StoreChange
from tests.fixtures.entries import judged_of, vector_of
from tests.fixtures.gateways import BOTH_CACHES, Served, config_of, gateway_of, recovered
from tests.fixtures.stores import OutsideServer
from tests.fixtures.upstream import Upstream
from tests.fixtures.waiting import until

PRIOR = [(0.5, 0.02)] * BANDS
PROMISE = Acceptance(max_wrong_hits=0.01)

SEEN = st.lists(
    st.tuples(st.booleans(), st.sampled_from([0.5, 0.75, 0.9]), st.sampled_from(list(Label)), st.integers(0, 5)),
    max_size=30,
)


@settings(max_examples=30, deadline=None)
@given(SEEN)
def test_two_that_tell_each_other_learn_what_one_process_would(seen: list[tuple[bool, float, Label, int]]) -> None:
    said: list[tuple[bool, LearningEvent]] = []
    one = RouteControl(PRIOR, "basis")
    two = {
        which: RouteControl(PRIOR, "basis", report=lambda s, w=which: said.append((w, s))) for which in (True, False)
    }
    counts = {True: 0, False: 0}
    for which, score, label, requests in seen:
        observation = Observation(vector_of(int(100 * score)), score, score, label)
        counts[which] += requests
        two[which].advance(counts[which])
        one.advance(sum(counts.values()))
        for control in (one, two[which]):
            control.record_neighbour(score, 10)
            control.learn(observation)
            control.hit()
            control.audited(label, 0.5)
        two[which].publish_traffic()
        while said:
            by, words = said.pop(0)
            two[not by].apply_event(words)
    vector = vector_of(75)
    for control in two.values():
        assert control.labels == one.labels
        assert control.threshold(PROMISE) == pytest.approx(one.threshold(PROMISE), abs=0.021)
        assert control.shift(vector) == pytest.approx(one.shift(vector), abs=2e-3)  # vectors go round as half floats
        assert control.requests == pytest.approx(one.requests)
        assert control.served == pytest.approx(one.served)


@pytest.mark.parametrize("said", [("label",), ("label", b"x", 1, 1, "right"), ("traffic", 1), ("audit", "maybe", 1)])
def test_what_cannot_be_read_is_refused_and_changes_nothing(said: LearningEvent) -> None:
    control = RouteControl(PRIOR, "basis")
    with pytest.raises((ValueError, TypeError)):
        control.apply_event(said)
    assert control.labels == 0


def test_what_a_later_version_says_is_left() -> None:
    RouteControl(PRIOR, "basis").apply_event(("whatever", 1, 2))


@pytest.mark.parametrize("words", [["quality"], [], ["quality", "basis"], [b"\xff"]])
async def test_a_line_of_another_form_keeps_nobody_from_the_next(words: list[Any]) -> None:
    heard: list[Any] = []
    sharing = Gossip(None, "me")  # type: ignore[arg-type]  # it says nothing
    sharing.on("quality", lambda *said: heard.append(said), lambda _: None)
    lines = [base64.b64encode(msgpack.packb(each)).decode() for each in (words, ["quality", "basis", "route"])]
    changes = [StoreChange(ChangeKind.GOSSIP, "other", 0.0, line, f"{i}-0") for i, line in enumerate(lines, 1)]
    await sharing.apply(changes, 0.0)
    assert heard[-1] == ("basis", "route")


def on(store: OutsideServer, upstream: Upstream, folder: Path):
    config = config_of(
        folder, {"main": {"adapter": "openai", "url": upstream.url}}, store={"url": store.url, "timeout": "10s"}
    )
    return gateway_of(config, BOTH_CACHES)


@asynccontextmanager
async def both(store: OutsideServer, upstream: Upstream, folder: Path) -> AsyncIterator[tuple[Served, Served]]:
    """Two gateways on one store, which have read from it what they need."""
    async with on(store, upstream, folder / "one") as one, on(store, upstream, folder / "two") as two:
        await recovered(one)
        await recovered(two)
        yield one, two


def labels(served: Served) -> int:
    return served.gateway.parts.space.controls.of("default").labels


def learn(served: Served, count: int) -> None:
    for _ in range(count):
        served.gateway.parts.space.labels.report("default", judged_of(vector=vector(served)), Label.RIGHT, "audit")


def vector(served: Served) -> np.ndarray:
    return vector_of(1, served.gateway.parts.space.embedder.dimension)


async def test_what_one_gateway_learns_the_other_learns_and_neither_overwrites_it(
    upstream: Upstream, tmp_path: Path, outside_store: OutsideServer
) -> None:
    async with both(outside_store, upstream, tmp_path) as (one, two):
        learn(one, 3)
        learn(two, 2)
        await until(lambda: labels(one) == labels(two) == 5)
    async with on(outside_store, upstream, tmp_path / "three") as three:
        await recovered(three)
        assert labels(three) == 5


async def test_a_gateway_that_comes_later_hears_what_was_said_since_the_snapshot(
    upstream: Upstream, tmp_path: Path, outside_store: OutsideServer
) -> None:
    async with on(outside_store, upstream, tmp_path / "one") as one:
        await recovered(one)
        await until(lambda: one.gateway.parts.fleet.is_following)
        learn(one, 3)
        await one.gateway.parts.space.learning.save_one("default")
        async with on(outside_store, upstream, tmp_path / "two") as two:
            await recovered(two)
            assert labels(two) == 3
            learn(one, 2)
            await until(lambda: labels(two) == 5)


async def test_a_reset_by_one_is_a_reset_of_all(
    upstream: Upstream, tmp_path: Path, outside_store: OutsideServer
) -> None:
    async with both(outside_store, upstream, tmp_path) as (one, two):
        learn(one, 3)
        await until(lambda: labels(two) == 3)
        async with two.session.post(two.admin_url + "/admin/quality/reset", json={"route": "default"}) as answer:
            assert answer.status == 200
        await until(lambda: labels(one) == 0)
