"""`nearhit eval --shadow`: the quality and the cost of other choices, by what audits and shadows compared."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gateway.__main__ import main
from gateway.steps.traffic_log.alternatives import Alternatives, single_as_good
from gateway.steps.traffic_log.format import RecordedComparison, Row, encode_batch, encode_heading
from gateway.steps.traffic_log.reader import TrafficLog
from tests.features.recorder.test_alternatives import HEADING, PRICES, TIERS, compared, request_at, route_of
from tests.fixtures.several import policy_of

SCORES = [at / 40 for at in range(40)]
TRAFFIC = [request_at(score, "light" if score <= 0.5 else "large") for score in SCORES]


def judged(share_right: float, candidate: str = "light", count: int = 400) -> list[RecordedComparison]:
    """Comparisons of each complexity, of which this share is as good."""
    return [
        compared(at % 40 / 40, "right" if at // 40 < share_right * count / 40 else "wrong", candidate, source="shadow")
        for at in range(count)
    ]


def test_one_model_that_keeps_as_much_for_less_is_named(tmp_path: Path) -> None:
    """The tiny model is always as good, the light one in half of the cases."""
    comparisons = [*judged(1.0, "tiny"), *judged(0.5)]
    log = TrafficLog((*TRAFFIC,), (), HEADING, (), (*comparisons,))
    found = Alternatives(route_of(tmp_path), log, PRICES)
    single = single_as_good(found.recorded(), found.singles())
    assert single is not None
    assert (single.light, single.light_requests) == ("tiny", 40)


def test_no_model_is_named_where_the_light_one_loses_and_the_large_one_costs_more(tmp_path: Path) -> None:
    log = TrafficLog((*TRAFFIC,), (), HEADING, (), (*judged(0.5),))
    found = Alternatives(route_of(tmp_path), log, PRICES)
    assert single_as_good(found.recorded(), found.singles()) is None


def prepare(folder: Path, rows: list[Row]) -> list[str]:
    (folder / "policies").mkdir()
    (folder / "policies" / "default.yaml").write_text(policy_of(TIERS))
    price = {"light": (1.0, 1.0), "large": (10.0, 10.0), "tiny": (0.5, 0.5)}
    backends = {
        name: {
            "adapter": "openai",
            "url": "http://127.0.0.1:9/v1",
            "price": {"input_per_million": a, "output_per_million": b},
        }
        for name, (a, b) in price.items()
    }
    document = {"version": 1, "embedder": {"adapter": "hash"}, "backends": backends}
    (folder / "config.yaml").write_text(json.dumps(document))
    (folder / "week.segment").write_bytes(encode_heading(HEADING) + encode_batch(rows))
    return ["eval", "--config", str(folder / "config.yaml"), "--shadow", str(folder / "week.segment")]


def test_the_command_draws_a_curve_and_names_one_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = prepare(tmp_path, [*TRAFFIC, *judged(1.0, "tiny"), *judged(0.5)])
    assert main([*command, "--json"]) == 0
    (route,) = json.loads(capsys.readouterr().out)["routes"]
    tiny = [each for each in route["curve"] if each["light"] == "tiny"]
    assert [each["light_requests"] for each in tiny] == sorted(each["light_requests"] for each in tiny)
    assert tiny[-1]["kept"]["value"] == 1.0 and tiny[-1]["kept"]["low"] > 0.98
    light = [each for each in route["curve"] if each["light"] == "light"][-1]["kept"]
    assert light["low"] < 0.5 == light["value"] < light["high"]
    assert route["single"]["light"] == "tiny"
    assert main(command) == 0
    text = capsys.readouterr().out
    assert "one model at the same cost would do as well or better: tiny alone" in text


def test_traffic_that_is_not_there_and_options_that_do_not_fit_are_faults(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = prepare(tmp_path, [*TRAFFIC])
    assert main([*command, "--at-least", "90%"]) == 2
    assert "expected no --prompts, --expect, --at-least or --admin" in capsys.readouterr().err
    assert main(command[:3]) == 2
    assert "expected --prompts and --expect, or --shadow" in capsys.readouterr().err
    assert main([*command[:3], "--shadow", "last-1h"]) == 1
