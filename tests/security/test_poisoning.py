"""Poisoning attacks on the shipped policy, and with a confirmation by a second client. The models are the real ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.security.attacks import KINDS, attacks, targets
from tests.security.replay import replay

TARGETS = 4  # of those in the file; `python -m tests.security.replay` has all of them
ERRING = "erring model"
LARGEST_SHARE = 0.05


@pytest.mark.parametrize("confirm", [False, True], ids=["shipped", "confirm-2"])
async def test_an_attacker_reaches_nobody_else(confirm: bool, tmp_path: Path) -> None:
    plan = attacks(targets()[:TARGETS])
    outcomes = await replay(plan, tmp_path, confirm=confirm)
    assert [outcome.kind for outcome in outcomes] == list(KINDS)
    assert {outcome.kind: outcome.across for outcome in outcomes if outcome.across} == {}
    if confirm:
        assert {outcome.kind: outcome.within for outcome in outcomes if outcome.within} == {}
        return
    steered = [outcome for outcome in outcomes if outcome.kind != ERRING]
    assert sum(outcome.within for outcome in steered) <= LARGEST_SHARE * sum(outcome.asked for outcome in steered)
    # The replay can fail: a wrong answer that the model gives by itself to a paraphrase is served.
    assert next(outcome for outcome in outcomes if outcome.kind == ERRING).within > 0


def test_each_attack_differs_from_the_questions_of_its_victims() -> None:
    for attack in attacks(targets()):
        assert not set(attack.planted) & set(attack.victims)
