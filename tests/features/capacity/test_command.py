"""`nearhit capacity` and its files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gateway.__main__ import main
from gateway.features.capacity.costs import load_costs, shipped_costs

ASKED = ["capacity", "--rps", "50000", "--hit-rate", "0.4", "--entries", "1e8"]
ROOT = Path(__file__).parents[3]


def test_the_plan_has_every_part_and_its_formula(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*ASKED, "--embedder", "triton"]) == 0
    said = capsys.readouterr().out
    for name in ("gateways", "store shards", "milvus nodes", "embedding GPUs", "light model GPUs", "large model GPUs"):
        assert f"\n{name} " in said
        assert f"  {name}: " in said
    assert "USD a month" in said


def test_a_share_may_be_written_in_per_cent(capsys: pytest.CaptureFixture[str]) -> None:
    main([*ASKED, "--json"])
    by_number = json.loads(capsys.readouterr().out)
    main([*ASKED[:4], "40%", *ASKED[5:], "--json"])
    assert json.loads(capsys.readouterr().out) == by_number


def test_costs_and_prices_of_ones_own_go_before_the_shipped_ones(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "costs.yaml").write_text("costs: {large_per_gpu: {value: 8}}\n")
    (tmp_path / "prices.yaml").write_text("currency: EUR\nprices: {gpu: 0}\n")
    main([*ASKED, "--json"])
    before = json.loads(capsys.readouterr().out)
    files = ["--costs", str(tmp_path / "costs.yaml"), "--prices", str(tmp_path / "prices.yaml")]
    assert main([*ASKED, *files, "--json"]) == 0
    after = json.loads(capsys.readouterr().out)
    large = [{part["name"]: part for part in said["parts"]}["large model GPUs"] for said in (before, after)]
    assert [(part["count"], part["assumed"]) for part in large] == [(7501, ["large_per_gpu"]), (3751, [])]
    assert after["cost_per_month"]["gpu"] == 0
    assert after["cost_per_month"]["currency"] == "EUR"
    assert "gpu" not in after["cost_per_month"]["assumed_prices"]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("costs: {mis_loop_us: {value: 9}}\n", "costs.mis_loop_us: unknown name, did you mean 'miss_loop_us'?"),
        ("costs: {miss_loop_us: {value: -1}}\n", "costs.miss_loop_us.value: expected more than 0, got -1"),
        ("costs: {miss_loop_us: 9}\n", "costs.miss_loop_us: expected a mapping, got 9"),
        ("costs: {}\n", "expected at least one entry"),
    ],
)
def test_faults_of_a_file_are_at_their_lines(
    tmp_path: Path, content: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "costs.yaml"
    file.write_text(content)
    assert main([*ASKED, "--costs", str(file)]) == 1
    error = capsys.readouterr().err
    assert error.startswith(f"{file}:1: ")
    assert said in error


def test_a_file_that_is_not_there_is_a_fault(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*ASKED, "--prices", str(tmp_path / "none.yaml")]) == 1
    assert "does not exist, expected a file of prices such as prices: {core: 20}" in capsys.readouterr().err


def test_what_cannot_be_is_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["capacity", "--rps", "1", "--hit-rate", "1.4", "--entries", "1", "--json"]) == 2
    said = capsys.readouterr()
    assert said.err.startswith("nearhit: --hit-rate is 1.4, expected a share")
    assert json.loads(said.out)["error"].startswith("--hit-rate is 1.4")


def test_every_shipped_cost_says_where_it_comes_from() -> None:
    shipped = shipped_costs()
    for name, cost in shipped.costs.items():
        assert cost.what and cost.unit and cost.source, name
        if cost.measured:
            assert cost.date and cost.machine in shipped.machines, name
            target = cost.source.split()[1]
            assert f"\n{target}:" in (ROOT / "Makefile").read_text(), name
    assert load_costs(None).assumed == {name for name, cost in shipped.costs.items() if not cost.measured}
