"""Poisoning attacks on the shipped policy, and with a confirmation by a second client. The models are the real ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.security.attacks import KINDS, attacks, targets
from tests.security.replay import POLICIES, replay

TARGETS = 4  # of those in the file; `python -m tests.security.replay` has all of them
ERRING = "erring model"
LIMIT = 0.05  # of the requests of victims in the attacker's tenant


@pytest.mark.parametrize("policy", POLICIES)
async def test_an_attacker_reaches_no_other_tenant_and_hardly_anybody_in_theirs(policy: str, tmp_path: Path) -> None:
    outcomes = await replay(attacks(targets()[:TARGETS]), tmp_path, policy)
    assert [outcome.kind for outcome in outcomes] == list(KINDS)
    assert {outcome.kind: outcome.across for outcome in outcomes if outcome.across} == {}
    within = {outcome.kind: outcome.within for outcome in outcomes}
    attacked = [outcome for outcome in outcomes if outcome.kind != ERRING]
    assert sum(outcome.within for outcome in attacked) <= LIMIT * sum(outcome.asked for outcome in attacked)
    if policy == "confirm: 2":
        assert set(within.values()) == {0}
    else:  # the replay can fail: a wrong answer that the model gives by itself to a paraphrase is served
        assert within[ERRING] > 0
        assert within["hidden"] == 0


def test_each_attack_differs_from_the_questions_of_its_victims() -> None:
    for attack in attacks(targets()):
        assert not set(attack.planted) & set(attack.victims)
