"""`nearhit capacity`: what a fleet takes for some traffic, from measured unit costs."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path

from gateway.cli.admin_client import WrongUsage
from gateway.cli.output import print_result
from gateway.cli.parser import Command, build
from gateway.tools.capacity.costs import load_costs, load_prices
from gateway.tools.capacity.demand import Demand, Impossible
from gateway.tools.capacity.plan import plan_fleet
from gateway.tools.capacity.report import as_json, as_text


def register(command: Command) -> None:
    command.define(
        run,
        "--rps 50000 --hit-rate 0.4 --entries 1e8",
        "--rps 200 --hit-rate 30% --entries 500000 --models elsewhere --prices prices.yaml --json",
        about="From unit costs that were measured, with the formula of each line; what was not measured is marked, and "
        "prices are assumptions until you give yours. It reads neither configuration nor policies, and asks nobody. "
        "How far the formulas are from gateways that run is in docs/scaling.md.",
        fault="a file of costs or prices has faults",
    )
    number = command.add_argument
    number("--rps", type=float, required=True, metavar="N", help="requests a second, on the mean of a month")
    number("--hit-rate", type=share, required=True, metavar="SHARE", help="of all requests, such as 0.4 or 40%%")
    number("--entries", type=float, required=True, metavar="N", help="stored at once, such as 1e8")
    defaults = {field.name: field.default for field in fields(Demand)}
    for name, kind, meaning in OPTIONS:
        default = defaults[name]
        option = f"--{name.replace('_', '-')}"
        number(option, type=kind, default=default, metavar="N", help=f"{meaning}; default: {default:g}")
    number("--embedder", choices=("onnx", "triton"), default="onnx", help="in each gateway, or on GPUs; default: onnx")
    number("--index", choices=("auto", "faiss", "milvus"), default="auto", help="default: auto")
    number("--models", choices=("own", "elsewhere"), default="own", help="whether their GPUs count; default: own")
    number("--costs", type=Path, metavar="FILE", help="unit costs of your own, in place of the shipped ones")
    number("--prices", type=Path, metavar="FILE", help="your prices, in place of the assumed ones")


def share(text: str) -> float:
    """`0.4` or `40%`. Raises `ValueError`; whether it lies within [0, 1] the demand says."""
    return float(text[:-1]) / 100 if text.endswith("%") else float(text)


OPTIONS: tuple[tuple[str, Callable[[str], float], str], ...] = (
    ("semantic_share", share, "of the hits"),
    ("stored_share", share, "of the misses"),
    ("stream_share", share, "of the misses"),
    ("stream_events", float, "of one stream"),
    ("large_share", share, "of the misses, to the large model"),
    ("peak_to_mean", float, "how many times the mean the peak is"),
    ("utilisation", share, "of any core, GPU or node at the peak"),
    ("spare", int, "of everything that has no replica of its own"),
    ("store_replicas", int, "of each shard, beside its master"),
    ("request_bytes", float, "of one request"),
    ("answer_bytes", float, "of one answer"),
)


def run(arguments: argparse.Namespace) -> int:
    """Raises `ConfigInvalid` or `WrongUsage`."""
    costs = load_costs(arguments.costs)
    prices, currency = load_prices(arguments.prices)
    try:
        fleet = plan_fleet(build(Demand, arguments, own_models=arguments.models == "own"), costs)
    except Impossible as error:
        raise WrongUsage(str(error)) from None
    said = as_json(fleet, costs, prices, currency)
    return print_result(arguments, said, as_text(fleet, costs, prices, currency))
