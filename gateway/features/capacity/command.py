"""`nearhit capacity` sizes a fleet for some traffic, from measured unit costs."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path

from gateway.cli.output import WrongUsage, print_result
from gateway.cli.parser import Command, build
from gateway.features.capacity.costs import load_costs, load_prices
from gateway.features.capacity.demand import Demand, DemandImpossible
from gateway.features.capacity.plan import plan_fleet
from gateway.features.capacity.report import as_json, as_text


def register(command: Command) -> None:
    command.define(
        run,
        "--rps 50000 --hit-rate 0.4 --entries 1e8",
        "--rps 200 --hit-rate 30% --entries 500000 --models elsewhere --prices prices.yaml --json",
        about="The plan is computed from measured unit costs, and each line shows its formula. Figures that were not "
        "measured are marked. Prices are assumptions until you give yours. The command reads neither configuration nor "
        "policies, and contacts nothing. docs/scaling.md compares the formulas with running gateways.",
        fault="a file of costs or prices has faults",
    )
    number = command.add_argument
    number("--rps", type=float, required=True, metavar="N", help="requests per second, as the mean of a month")
    number("--hit-rate", type=share, required=True, metavar="SHARE", help="share of all requests, such as 0.4 or 40%%")
    number("--entries", type=float, required=True, metavar="N", help="entries stored at the same time, such as 1e8")
    defaults = {field.name: field.default for field in fields(Demand)}
    for name, kind, meaning in OPTIONS:
        default = defaults[name]
        option = f"--{name.replace('_', '-')}"
        number(option, type=kind, default=default, metavar="N", help=f"{meaning}; default: {default:g}")
    number(
        "--embedder",
        choices=("onnx", "triton"),
        default="onnx",
        help="onnx: in each gateway; triton: on GPUs; default: onnx",
    )
    number("--index", choices=("auto", "faiss", "milvus"), default="auto", help="default: auto")
    number(
        "--models",
        choices=("own", "elsewhere"),
        default="own",
        help="own: the plan includes the models' GPUs; default: own",
    )
    number("--costs", type=Path, metavar="FILE", help="your unit costs, instead of the shipped ones")
    number("--prices", type=Path, metavar="FILE", help="your prices, instead of the assumed ones")


def share(text: str) -> float:
    """Parse `0.4` or `40%`. Raises `ValueError`; `Demand` checks that the share is in [0, 1]."""
    return float(text[:-1]) / 100 if text.endswith("%") else float(text)


OPTIONS: tuple[tuple[str, Callable[[str], float], str], ...] = (
    ("semantic_share", share, "share of the hits that are semantic"),
    ("stored_share", share, "share of the misses that are stored"),
    ("stream_share", share, "share of the misses that are streams"),
    ("stream_events", float, "events per stream"),
    ("large_share", share, "share of the misses that the large model answers"),
    ("peak_to_mean", float, "ratio of the peak to the mean"),
    ("utilisation", share, "limit for each core, GPU or node at the peak"),
    ("spare", int, "spare units of everything without replicas"),
    ("store_replicas", int, "replicas of each shard, besides its primary"),
    ("request_bytes", float, "size of one request"),
    ("answer_bytes", float, "size of one answer"),
)


def run(arguments: argparse.Namespace) -> int:
    """Print the plan. Raises `ConfigInvalid` or `WrongUsage`."""
    costs = load_costs(arguments.costs)
    prices, currency = load_prices(arguments.prices)
    try:
        fleet = plan_fleet(build(Demand, arguments, own_models=arguments.models == "own"), costs)
    except DemandImpossible as error:
        raise WrongUsage(str(error)) from None
    document = as_json(fleet, costs, prices, currency)
    return print_result(arguments, document, as_text(fleet, costs, prices, currency))
