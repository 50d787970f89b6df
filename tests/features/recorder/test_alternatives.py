"""The cost and quality of another choice among models: the truth lies in the intervals, and nothing is made up."""

from __future__ import annotations

import random
from collections.abc import Iterable
from pathlib import Path

import pytest

from gateway.config import Config
from gateway.config.policy.load import policy_from_text
from gateway.config.policy.model import Route
from gateway.prices import Price, Tariff
from gateway.scores import RequestFacts
from gateway.steps.traffic_log.alternatives import EVERYTHING, Alternatives, cheapest_as_good
from gateway.steps.traffic_log.format import RecordedAnswer, RecordedComparison, RecordedRequest, SegmentHeading
from gateway.steps.traffic_log.reader import TrafficLog
from tests.fixtures.gateways import config_of
from tests.fixtures.several import policy_of

TIERS = "light: light, large: large, escalate_above: 0.5"
PRICES: dict[str, Tariff] = {"light": Price(1.0, 1.0), "large": Price(10.0, 10.0), "tiny": Price(0.5, 0.5)}
HEADING = SegmentHeading(0.0, "e", 1, "v", 0.5, (), {}, {}, "b")
TOKENS = (100, 50)


def route_of(tmp_path: Path, route: str = TIERS) -> Route:
    backends = {name: {"adapter": "openai", "url": "http://127.0.0.1:9/v1"} for name in ("light", "large", "tiny")}
    config: Config = config_of(tmp_path, backends)
    return policy_from_text(policy_of(route), "policy.yaml", config).routes[0]


def request_at(score: float | None, backend: str, tokens: tuple[int, int] = TOKENS) -> RecordedRequest:
    facts = RequestFacts(
        "/v1/chat/completions", "m", "openai", "chat", (), b"t", b"", b"c", b"x", None,
        no_store=False, no_cache=False, only_if_cached=False, max_age_s=None, min_fresh_s=0.0, uncached=None,
        inputs=False, stream=False, input_tokens=tokens[0], max_tokens=None, temperature=None, roles=(),
        budget_s=None, patient=False,
    )  # fmt: skip
    price = PRICES[backend].price("m")
    answer = RecordedAnswer("stored", *tokens, dollars=price.of(*tokens), size=9, seconds=0.1)
    return RecordedRequest(
        1.0, "id", "p", "default", facts, None, None, readable=True, status=200, verdict="miss", reason=None,
        backend=backend, tier=None, complexity=score, entry=b"", stored=True, answer=answer, hit=None, shift=0.0,
        threshold=None, similarity=None, considered=(), seconds=0.1, stages={},
    )  # fmt: skip


def compared(
    score: float | None,
    label: str,
    candidate: str = "light",
    reference: str = "large",
    source: str = "audit",
    tokens: tuple[int, int] = TOKENS,
) -> RecordedComparison:
    return RecordedComparison(1.0, "default", "m", source, score, reference, candidate, label, TOKENS, tokens)


def alternatives(
    route: Route, requests: Iterable[RecordedRequest], comparisons: Iterable[RecordedComparison] = ()
) -> Alternatives:
    return Alternatives(route, TrafficLog((*requests,), (), HEADING, (), (*comparisons,)), PRICES)


def test_the_cost_of_another_threshold_is_that_of_each_call_at_its_model(tmp_path: Path) -> None:
    """Both models write as much, so each cost is exact."""
    rows = [request_at(score, "light" if score <= 0.5 else "large") for score in (0.1, 0.3, 0.6, 0.8)]
    found = alternatives(route_of(tmp_path), rows, [compared(0.1, "right"), compared(0.3, "right")])
    light, large = PRICES["light"].price("m").of(*TOKENS), PRICES["large"].price("m").of(*TOKENS)
    now = found.recorded()
    assert (now.requests, now.light_requests, now.cost.value) == (4, 2, pytest.approx(2 * light + 2 * large))
    for threshold, to_light in ((-1.0, 0), (0.2, 1), (0.5, 2), (0.7, 3), (1.0, 4)):
        cost = found.at("light", threshold).cost
        assert cost == pytest.approx([to_light * light + (4 - to_light) * large] * 3)
    assert [each.light_requests for each in found.curve("light")] == [0, 1, 2, 3, 4]


def test_a_model_that_writes_more_costs_more(tmp_path: Path) -> None:
    """The shadow's answers have twice the output, so the cost is that of its own tokens."""
    rows = [request_at(0.2, "light") for _ in range(10)]
    pairs = [compared(0.2, "right", "tiny", "light", "shadow", (100, 100 + step)) for step in (-1, 0, 1)]
    cost = alternatives(route_of(tmp_path), rows, pairs).at("tiny", EVERYTHING).cost
    own = 10 * PRICES["tiny"].price("m").of(100, 100)
    assert cost.value == pytest.approx(own)
    assert cost.low is not None and cost.high is not None
    assert own * 0.98 < cost.low < own < cost.high < own * 1.02
    guess = alternatives(route_of(tmp_path), rows).at("tiny", EVERYTHING).cost
    assert guess == (pytest.approx(10 * PRICES["tiny"].price("m").of(*TOKENS)), None, None), "nothing was compared"


def test_nothing_is_known_of_what_nobody_compared(tmp_path: Path) -> None:
    rows = [request_at(score / 10, "light" if score <= 5 else "large") for score in range(10)]
    found = alternatives(route_of(tmp_path), rows, [compared(score / 10, "right") for score in range(6)])
    assert found.at("tiny", 0.5).light_kept == (None, 0.0, 1.0)
    audited, beyond = found.at("light", 0.5), found.at("light", EVERYTHING)
    assert (audited.covered, beyond.covered) == (1.0, 0.6)
    assert (audited.light_kept.value, beyond.light_kept.value) == (1.0, None)
    assert beyond.light_kept.low is not None and audited.light_kept.low is not None
    assert beyond.light_kept.low == pytest.approx(0.6 * audited.light_kept.low), "the rest may all be worse"
    assert audited.kept.low == pytest.approx(1 - 0.6 * (1 - audited.light_kept.low)), "the best model keeps all"


def test_comparisons_that_decide_nothing_and_calls_that_fail_widen_the_interval(tmp_path: Path) -> None:
    rows = [request_at(0.1, "light") for _ in range(40)]
    right = [compared(0.1, "right")] * 30
    sure = alternatives(route_of(tmp_path), rows, right).recorded()
    for label in ("undecided", "failed"):
        open_ones = alternatives(route_of(tmp_path), rows, [*right, *[compared(0.1, label)] * 10]).recorded()
        assert open_ones.light_kept.value == sure.light_kept.value == 1.0
        assert open_ones.light_kept.low is not None and sure.light_kept.low is not None
        assert open_ones.light_kept.low < sure.light_kept.low - 0.15
        assert getattr(open_ones.evidence, label) == 10


@pytest.mark.parametrize("share", [0.05, 0.3])
def test_the_truth_lies_in_the_interval(tmp_path: Path, share: float) -> None:
    """Of 200 weeks. Hard requests are worse with the light model, and are compared less often."""
    draw, route, missed = random.Random(7), route_of(tmp_path), 0
    for _ in range(200):
        scores = [draw.random() for _ in range(600)]
        worse = [draw.random() < 0.4 * score for score in scores]
        pairs = [
            compared(score, "wrong" if bad else "right")
            for score, bad in zip(scores, worse, strict=True)
            if draw.random() < share * (1.5 - score)
        ]
        found = alternatives(route, [request_at(score, "light") for score in scores], pairs)
        kept = found.at("light", 0.8).kept
        truth = 1 - sum(bad and score <= 0.8 for score, bad in zip(scores, worse, strict=True)) / len(scores)
        assert kept.low is not None and kept.high is not None
        missed += not kept.low <= truth <= kept.high
    assert missed <= 10, "5 % of 200"


def test_a_shadow_of_light_answers_bounds_what_the_best_model_would_say(tmp_path: Path) -> None:
    """It was never compared with the best model, so there is an interval and no figure."""
    draw, route = random.Random(3), route_of(tmp_path)
    a_is_b, b_is_c = [draw.random() < 0.95 for _ in range(400)], [draw.random() < 0.9 for _ in range(400)]
    pairs = [compared(0.1, "right" if same else "wrong", "tiny", "light", "shadow") for same in a_is_b]
    pairs += [compared(0.1, "right" if same else "wrong") for same in b_is_c]
    kept = alternatives(route, [request_at(0.1, "light")] * 400, pairs).at("tiny", 0.5).light_kept
    assert kept.value is None
    assert kept.low is not None and kept.high is not None
    truth = sum(map(lambda first, second: first and second, a_is_b, b_is_c)) / 400
    assert 0.75 < kept.low < truth < kept.high


def test_a_route_with_one_model_tells_what_its_shadow_would_cost_and_keep(tmp_path: Path) -> None:
    route = route_of(tmp_path, "backend: large, shadow: {backend: tiny, share: 100%}")
    pairs = [compared(None, "right", "tiny", "large", "shadow")] * 19 + [
        compared(None, "wrong", "tiny", source="shadow")
    ]
    found = alternatives(route, [request_at(None, "large")] * 20, pairs)
    assert (found.present, found.lights()) == (None, ("tiny",))
    (all_to_it,) = found.curve("tiny")
    assert all_to_it.cost.value == pytest.approx(20 * PRICES["tiny"].price("m").of(*TOKENS))
    assert all_to_it.kept.value == 0.95
    assert found.recorded().kept == (1.0, 1.0, 1.0)


def test_a_model_without_a_price_has_no_cost_and_keeps_its_quality(tmp_path: Path) -> None:
    found = Alternatives(
        route_of(tmp_path),
        TrafficLog((request_at(0.1, "light"),), (), HEADING, (), (compared(0.1, "right"),)),
        {"light": PRICES["light"]},
    )
    assert found.at("light", -1.0).cost == (None, None, None)
    assert found.at("light", 1.0).light_kept.value == 1.0
    assert cheapest_as_good(found.recorded(), found.curve("light")) is None


def test_calls_without_tokens_or_complexity_are_counted_and_left_out(tmp_path: Path) -> None:
    rows = [request_at(0.1, "light"), request_at(None, "light"), request_at(0.1, "light", (0, 0))]
    found = alternatives(route_of(tmp_path), rows)
    assert (found.recorded().requests, found.left_out) == (1, 2)
    assert alternatives(route_of(tmp_path), []).curve("light") == []


def test_an_alternative_is_as_good_only_with_evidence(tmp_path: Path) -> None:
    rows = [request_at(score / 100, "light" if score <= 50 else "large") for score in range(100)]
    route = route_of(tmp_path)
    few = alternatives(route, rows, [compared(score / 100, "right") for score in range(0, 51, 5)])
    assert cheapest_as_good(few.recorded(), few.curve("light")) is None, "nothing is known above 0.5"
    shadow = [compared(score / 100, "right", "tiny", "large", "shadow") for score in range(0, 100, 2)]
    many = alternatives(route, rows, [*(compared(score / 100, "right") for score in range(0, 51, 5)), *shadow])
    best = cheapest_as_good(many.recorded(), [*many.curve("light"), *many.curve("tiny")])
    assert best is not None
    assert (best.light, best.light_requests) == ("tiny", 100)
