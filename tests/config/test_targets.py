"""Who answers, as policies say it: parts, tiers, fallbacks."""

from __future__ import annotations

import pytest

from gateway.config.policy.load import policy_from_text
from gateway.config.policy.model import Target, Tier
from gateway.config.policy.targets import TierPart
from tests.config.documents import config
from tests.fixtures.targets import light_and_large, one_backend


def target_of(route: str) -> Target:
    text = f"version: 1\nroutes:\n  - name: default\n    match: {{}}\n    route: {{{route}}}\n"
    return policy_from_text(text, "policy.yaml", config()).routes[0].target


def test_names_alone_mean_what_they_did() -> None:
    assert target_of("backend: main") == one_backend("main")
    assert target_of("light: light, large: large, escalate_above: 0.7") == light_and_large("light", "large", 0.7)
    assert target_of("tiers: [light, large]") == light_and_large("light", "large", 0.5)


def test_parts_are_a_tier_under_the_name_of_the_largest() -> None:
    parts = (TierPart("main", 0.05), TierPart("large", 0.95))
    assert target_of("backend: {main: 5%, large: 95%}").tiers == (Tier("large", "large", parts),)
    target = target_of("light: light, large: {main: 5%, large: 95%}")
    assert target.tiers == (Tier("light", "light"), Tier("large", "large", parts))
    assert [target.tier_with_backend(name) for name in ("light", "main", "large", "eu")] == [
        "light",
        "large",
        "large",
        None,
    ]
    assert target.members == ("light", "main", "large")


def test_tiers_have_a_number_a_step() -> None:
    target = target_of("tiers: [light, main, large], escalate_above: [0.3, 0.7]")
    assert [tier.name for tier in target.tiers] == ["light", "main", "large"]
    assert target.escalate_above == (0.3, 0.7)


def test_what_stands_beside_the_tiers() -> None:
    target = target_of("light: light, large: large, fallback: [main]")
    assert target.fallback == ("main",)
    assert target.members == ("light", "large", "main")


@pytest.mark.parametrize("share", ["95.0000001%", "0.95"])
def test_rounding_is_no_fault(share: str) -> None:
    assert len(target_of(f"backend: {{main: {share}, large: 5%}}").tiers[0].parts) == 2
