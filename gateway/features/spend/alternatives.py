"""The part of the report on other models and thresholds: what they would have cost and kept. Pure.

Its figures are those of `GET /admin/report/alternatives`, and of a simulation of another policy.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from gateway.features.spend.digest import cell, table
from gateway.features.spend.savings import money, percent

MEANING = (
    "Kept: the part of the requests with the best model's answer, or one as good. Nothing is known of a complexity at "
    "which nothing was compared, so the interval has both ends of it."
)
NAMES = ["Light model", "Up to", "Its requests", "Cost", "95 %", "Kept", "95 %", "Compared"]


def alternatives_section(found: Mapping[str, Any]) -> list[str]:
    """Return the lines of Markdown for an `AlternativesReport`."""
    traffic = found["traffic"]
    lines = [
        "## Other choices on the recorded traffic",
        "",
        f"{_count(traffic['requests'], 'request')}, {_time(traffic['since'])} to {_time(traffic['until'])} (UTC)",
    ]
    for route in found["routes"]:
        rows = [route["present"], *route["others"]]
        lines += [
            "",
            f"**{route_sentence(route)}.**",
            *_single_lines(route),
            "",
            *table(NAMES, [_row(each) for each in rows]),
        ]
        if route["left_out"]:
            lines += [
                "",
                f"Left out: {_count(route['left_out'], 'call')} of unknown tokens, complexity or model.",
            ]
    if not found["routes"]:
        lines += ["", "No route with recorded calls has a light model or a shadow, so there is nothing to compare."]
    return [*lines, "", *traffic["notes"], MEANING]


def route_sentence(route: Mapping[str, Any]) -> str:
    """Return the best of the alternatives of a route as one sentence."""
    best, present = route["best"], route["present"]
    name = cell(route["route"])
    if best is None:
        return f"Route {name}: no other choice is known to cost less and keep as much"
    return (
        f"Route {name}: {cell(best['light'])} {_reach(best)} would have cost {_money(best['cost'])} in place of "
        f"{_money(present['cost'])}, and kept {_shares(best['kept'])}"
    )


def _single_lines(route: Mapping[str, Any]) -> list[str]:
    """Return a sentence on the one model that would do as well as the choice between two, if there is one."""
    single = route["single"]
    if single is None:
        return []
    name = cell(single["light"]) if single["light_requests"] else "the best model"
    cost = _money(single["cost"])
    return ["", f"One model would do as well: {name} alone for {cost}, with {_shares(single['kept'])} kept."]


def policy_section(name: str, found: Mapping[str, Any]) -> list[str]:
    """Return the lines of Markdown for a simulation of the policy in the file `name`."""
    present, new = found["present"], found["new"]
    rows = [
        ["Hit rate", *(percent(side["hit_rate"]) for side in (present, new))],
        ["Wrong hits", *(_wrong(side["wrong_hits"]) for side in (present, new))],
        ["Cost", *(_cost_text(side) for side in (present, new))],
        ["Saved by hits", *(money(side["saved_dollars"]) for side in (present, new))],
        ["Large model's share", *(_optional(side["large_share"]) for side in (present, new))],
    ]
    return [
        f"## The policy in {cell(name)}",
        "",
        *table(["Simulated on the recorded traffic", "In force", "Other"], rows),
        "",
        *found["traffic"]["notes"],
    ]


def alternatives_tiles(found: Mapping[str, Any]) -> Iterable[tuple[str, str, str]]:
    """Yield the figures of a picture: the best of the alternatives of each route that has one."""
    for route in found["routes"]:
        best = route["best"]
        if best is not None:
            cost = f"{_money(best['cost'])}, not {_money(route['present']['cost'])}"
            note = f"{best['light']} {_reach(best)}, kept {_optional(best['kept']['low'])} or more"
            yield f"another choice, {route['route']}", cost, note


def _row(each: Mapping[str, Any]) -> list[str]:
    cost, kept = each["cost"], each["kept"]
    known = cost["low"] is not None and cost["low"] != cost["high"]
    return [
        f"{cell(each['light'])}, as it was" if each["threshold"] is None else cell(each["light"]),
        "" if each["threshold"] is None else f"{max(0.0, each['threshold']):.2f}",
        f"{each['light_requests']:,} of {each['requests']:,}",
        _money(cost),
        f"{money(cost['low'])} to {money(cost['high'])}" if known else "" if cost["low"] is not None else "not known",
        _optional(kept["value"]),
        f"{percent(kept['low'])} to {percent(kept['high'])}",
        f"{each['as_good'] + each['worse'] + each['undecided'] + each['failed']:,}",
    ]


def _reach(each: Mapping[str, Any]) -> str:
    """Return the requests that the light model gets, in words."""
    if each["light_requests"] == each["requests"]:
        return "for all requests"
    return f"up to a complexity of {max(0.0, each['threshold']):.2f}"


def _shares(kept: Mapping[str, Any]) -> str:
    ends = f"{percent(kept['low'])} to {percent(kept['high'])}"
    return ends if kept["value"] is None else f"{percent(kept['value'])} (95 %: {ends})"


def _money(cost: Mapping[str, Any]) -> str:
    return "not priced" if cost["value"] is None else money(cost["value"])


def _cost_text(side: Mapping[str, Any]) -> str:
    unknown = side["unknown_cost"]
    return money(side["cost_dollars"]) + (f" and {_count(unknown, 'call')} of unknown cost" if unknown else "")


def _wrong(wrong: Mapping[str, Any] | None) -> str:
    return "-" if wrong is None else f"{wrong['expected']:.1f} (95 %: {wrong['low']:.1f} to {wrong['high']:.1f})"


def _optional(share: float | None) -> str:
    return "-" if share is None else percent(share)


def _count(number: int, name: str) -> str:
    return f"{number:,} {name}{'' if number == 1 else 's'}"


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M")
