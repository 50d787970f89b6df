"""From a demand to a fleet: what must be monotone is, what must be linear is, what cannot be is said."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from gateway.features.capacity.costs import COST_NAMES, Costs, Prices, load_costs, load_prices
from gateway.features.capacity.demand import Demand, DemandImpossible
from gateway.features.capacity.plan import FleetPlan, plan_fleet
from gateway.features.capacity.report import as_json, as_text, total

COSTS = load_costs(None)
PRICES, CURRENCY = load_prices(None)
shares = st.floats(0, 1)
demands = st.builds(
    Demand,
    rps=st.floats(1, 1e6),
    hit_rate=shares,
    entries=st.floats(1, 1e10),
    semantic_share=shares,
    stored_share=st.floats(0.01, 1),
    stream_share=shares,
    stream_events=st.floats(0, 1000),
    large_share=shares,
    peak_to_mean=st.floats(1, 5),
    utilisation=st.floats(0.3, 0.9),
    spare=st.integers(0, 3),
    embedder=st.sampled_from(["onnx", "triton"]),
    index=st.sampled_from(["auto", "milvus"]),
)


def counts(fleet: FleetPlan) -> dict[str, int]:
    return {part.name: part.count for part in fleet.parts}


@given(demand=demands, more=st.floats(1, 10), what=st.sampled_from(["rps", "entries", "answer_bytes", "peak_to_mean"]))
def test_who_asks_for_more_is_never_told_less(demand: Demand, more: float, what: str) -> None:
    milvus = replace(demand, index="milvus")  # from FAISS to Milvus following ends, and gateways become fewer
    grown = replace(milvus, **{what: getattr(milvus, what) * more})
    few, many = counts(plan_fleet(milvus, COSTS)), counts(plan_fleet(grown, COSTS))
    assert all(many[name] >= count for name, count in few.items())
    assert total(plan_fleet(grown, COSTS), PRICES) >= total(plan_fleet(milvus, COSTS), PRICES) * (1 - 1e-9)


@given(demand=demands, more=shares)
def test_more_hits_never_take_more_gpus_of_models(demand: Demand, more: float) -> None:
    better = replace(demand, hit_rate=demand.hit_rate + more * (1 - demand.hit_rate), embedder="onnx")
    assert plan_fleet(better, COSTS).gpus <= plan_fleet(replace(demand, embedder="onnx"), COSTS).gpus


@given(demand=demands, times=st.floats(1, 50))
def test_cores_of_gateways_are_proportional_to_the_requests(demand: Demand, times: float) -> None:
    one = replace(demand, spare=0, index="milvus")
    cores = plan_fleet(one, COSTS).part("gateways").cores
    assert plan_fleet(replace(one, rps=one.rps * times), COSTS).part("gateways").cores == pytest.approx(times * cores)


@given(demand=demands, times=st.floats(1, 50))
def test_memory_of_the_store_is_proportional_to_the_entries(demand: Demand, times: float) -> None:
    stored = plan_fleet(demand, COSTS).part("store shards").memory_gb
    more = replace(demand, entries=demand.entries * times, index="milvus")
    assert plan_fleet(more, COSTS).part("store shards").memory_gb == pytest.approx(times * stored)


@given(demand=demands, rps=st.floats(1, 400), entries=st.floats(1, 1e6))
def test_no_core_is_used_beyond_what_was_asked_for(demand: Demand, rps: float, entries: float) -> None:
    demand = replace(demand, index="faiss", rps=rps, entries=entries)
    fleet = plan_fleet(demand, COSTS)
    left = demand.peak / (fleet.part("gateways").count - demand.spare)
    following = fleet.changes * COSTS.change_loop_us * 1e-6
    loop = demand.exact * COSTS.exact_loop_us + demand.semantic * COSTS.semantic_loop_us
    loop += demand.miss * (COSTS.miss_loop_us + demand.stream_share * demand.stream_events * COSTS.event_loop_us)
    assert left * loop * 1e-6 + following <= demand.utilisation * (1 + 1e-6)


@given(demand=demands, factor=st.floats(0.1, 10), name=st.sampled_from([n for n in COST_NAMES if n.endswith("_us")]))
def test_dearer_work_never_takes_fewer_gateways_or_shards(demand: Demand, factor: float, name: str) -> None:
    assume(name != "embedding_threads_us")  # what a GPU takes over
    dear = replace(COSTS, **{name: getattr(COSTS, name) * max(factor, 1 / factor)})
    for part in ("gateways", "store shards"):
        fixed = replace(demand, index="milvus")
        assert plan_fleet(fixed, dear).part(part).count >= plan_fleet(fixed, COSTS).part(part).count


def test_spares_come_on_top() -> None:
    with_none = plan_fleet(Demand(50_000, 0.4, 1e8, spare=0), COSTS)
    with_two = plan_fleet(Demand(50_000, 0.4, 1e8, spare=2), COSTS)
    assert with_two.part("gateways").count == with_none.part("gateways").count + 2


def test_the_index_leaves_the_process_where_it_does_not_fit_or_cannot_follow() -> None:
    assert plan_fleet(Demand(200, 0.4, 5e5), COSTS).index == "faiss"
    assert plan_fleet(Demand(200, 0.4, 5e6), COSTS).index == "milvus"
    assert plan_fleet(Demand(50_000, 0.4, 5e5), COSTS).index == "milvus"
    assert plan_fleet(Demand(50_000, 0.4, 5e5, stored_share=0.01), COSTS).index == "faiss"


def test_a_line_that_rests_on_an_assumption_says_so() -> None:
    said = as_json(plan_fleet(Demand(50_000, 0.4, 1e8, embedder="triton"), COSTS), COSTS, PRICES, CURRENCY)
    assumed = {part["name"]: part["assumed"] for part in said["parts"]}
    assert assumed["gateways"] == []
    assert assumed["embedding GPUs"] == ["embeddings_per_gpu"]
    assert said["cost_per_month"]["assumed_prices"] == ["core", "gpu", "memory_gb", "traffic_gb"]


def test_text_and_object_say_the_same_sum() -> None:
    fleet = plan_fleet(Demand(50_000, 0.4, 1e8), COSTS)
    own = Prices(10, 1, 100, 0)
    assert f"{total(fleet, own):,.0f}" in as_text(fleet, COSTS, own, "EUR")
    assert as_json(fleet, COSTS, own, "EUR")["cost_per_month"]["total"] == round(total(fleet, own), 2)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"hit_rate": 1.4}, "--hit-rate is 1.4, expected a share of 0 to 1"),
        ({"hit_rate": float("nan")}, "--hit-rate is nan, expected a share"),
        ({"rps": 0}, "--rps is 0, expected 0.001 to 1e+09"),
        ({"rps": float("inf")}, "--rps is inf"),
        ({"entries": 1e13}, "--entries is 1e+13, expected 0 to 1e+12"),
        ({"entries": 0}, "hits come from stored entries"),
        ({"stored_share": 0}, "nothing would ever store them"),
        ({"peak_to_mean": 0.5}, "--peak-to-mean is 0.5, expected 1 to 1000"),
        ({"utilisation": 1}, "--utilisation is 1, expected 0.05 to 0.95"),
        ({"index": "faiss"}, "--index faiss is measured up to 1e+06 entries in each gateway"),
        ({"index": "faiss", "entries": 1e5}, "--index faiss cannot follow 60,000 new entries a second"),
    ],
)
def test_what_cannot_be_is_one_sentence(given: dict[str, Any], said: str) -> None:
    with pytest.raises(DemandImpossible) as caught:
        plan_fleet(Demand(**{"rps": 50_000, "hit_rate": 0.4, "entries": 1e8, **given}), COSTS)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_all_costs_of_the_table_are_positive() -> None:
    assert all(getattr(COSTS, name) > 0 for name in COST_NAMES)
    assert isinstance(COSTS, Costs)
