"""Formats a simulation as text for an operator. Pure."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

VERDICTS = ("exact", "semantic", "stale", "coalesced", "miss", "bypass")
MAX_ROUTES = 20
Formatter = Callable[[float | None], str]


def as_text(report: Mapping[str, Any]) -> str:
    """Return the text of a report of `Simulation.as_json`."""
    traffic = report["traffic"]
    begun, ended = (time.strftime("%Y-%m-%d %H:%M", time.localtime(traffic[key])) for key in ("from", "to"))
    lines = [
        f"{traffic['requests']} requests, {begun} to {ended}, replayed in {traffic['seconds']:.1f} s",
        "",
        *_table(report["present"], report["new"], report["recorded"]),
        *_routes(report),
        "",
        *_changes(report["changed"], traffic["requests"]),
    ]
    if traffic["notes"]:
        lines += ["", "Not known, or not replayed:", *(f"  - {note}" for note in traffic["notes"])]
    return "\n".join(line.rstrip() for line in lines)


def _table(present: Mapping[str, Any], new: Mapping[str, Any], recorded: Mapping[str, Any]) -> Iterator[str]:
    yield f"{'':<22}{'present':>14}{'new':>14}{'change':>12}{'recorded':>12}"
    yield f"{'policy':<22}{present['policy']:>14}{new['policy']:>14}"
    yield _row("hit rate", present["hit_rate"], new["hit_rate"], _percent, recorded["hit_rate"])
    if (present["hit_rate_high"], new["hit_rate_high"]) != (present["hit_rate"], new["hit_rate"]):
        yield _row("  at the utmost", present["hit_rate_high"], new["hit_rate_high"], _percent)
    for verdict in VERDICTS:
        old, now = present["verdicts"].get(verdict, 0.0), new["verdicts"].get(verdict, 0.0)
        if old or now:
            yield _row(f"  {verdict}", old, now, _percent)
    if present["wrong_hits"] or new["wrong_hits"]:
        yield f"{'wrong hits, expected':<22}{_wrong(present):>14}{_wrong(new):>14}"
        yield f"{'  95 % interval':<22}{_interval(present):>14}{_interval(new):>14}"
    yield _row(
        "cost",
        present["cost_dollars"],
        new["cost_dollars"],
        _dollars,
        comparable=_is_comparable(present, new, "unknown_cost"),
    )
    yield _row("saved by hits", present["saved_dollars"], new["saved_dollars"], _dollars)
    timed = _is_comparable(present, new, "unknown_latency")
    for name in ("p50", "p95", "p99"):
        known = recorded["p95_ms"] if name == "p95" else None
        yield _row(name, present[f"{name}_ms"], new[f"{name}_ms"], _milliseconds, known, comparable=timed)
    if present["large_share"] is not None or new["large_share"] is not None:
        yield _row("large model's share", present["large_share"], new["large_share"], _percent)


def _routes(report: Mapping[str, Any]) -> Iterator[str]:
    old, new = report["present"]["routes"], report["new"]["routes"]
    names = list(dict.fromkeys([*old, *new]))
    if len(names) < 2:
        return
    yield ""
    yield f"{'route':<22}{'requests':>14}{'new':>14}{'hit rate':>12}{'new':>12}{'p95':>12}{'new':>12}"
    for name in names[:MAX_ROUTES]:
        a, b = old.get(name), new.get(name)
        figures = [
            *(str(side["requests"]) if side else "-" for side in (a, b)),
            *(_percent(side["hit_rate"]) if side else "-" for side in (a, b)),
            *(_milliseconds(side["p95_ms"]) if side else "-" for side in (a, b)),
        ]
        widths = (14, 14, 12, 12, 12, 12)
        yield f"{name[:21]:<22}" + "".join(f"{f:>{w}}" for f, w in zip(figures, widths, strict=True))


def _changes(changed: Mapping[str, Any], requests: int) -> Iterator[str]:
    if not changed["requests"]:
        yield "No request would get another outcome."
        return
    yield f"{changed['requests']} requests ({changed['requests'] / requests:.1%}) would get another outcome, such as"
    for each in changed["examples"]:
        question = each["prompt"] if each["prompt"] is not None else f"question {each['question']}"
        at = time.strftime("%H:%M:%S", time.localtime(each["at"]))
        outcomes = f"{_outcome_text(each['present'])} -> {_outcome_text(each['new'])}"
        yield f"  {at} {each['id'][:36]} {each['route']}: {outcomes}"
        yield f"    {' '.join(question.split())[:110]}"


def _outcome_text(what: Mapping[str, Any]) -> str:
    similarity = "" if what["similarity"] is None else f" at {what['similarity']:.3f}"
    backend = "" if what["backend"] is None else f" to {what['backend']}"
    reason = "" if what["reason"] is None else f" ({what['reason']}{similarity})"
    return f"{what['verdict']}{backend}{reason or similarity}"


def _is_comparable(present: Mapping[str, Any], new: Mapping[str, Any], unknown: str) -> bool:
    """Return whether a figure covers the same requests on both sides. Only then a difference has a meaning."""
    return not present[unknown] and not new[unknown]


def _row(
    name: str,
    old: float | None,
    new: float | None,
    shown: Formatter,
    recorded: float | None = None,
    *,
    comparable: bool = True,
) -> str:
    change = "" if old is None or new is None else _signed(new - old, shown) if comparable else "?"
    return f"{name:<22}{shown(old):>14}{shown(new):>14}{change:>12}{'' if recorded is None else shown(recorded):>12}"


def _signed(change: float, shown: Formatter) -> str:
    text = shown(abs(change))
    if text == shown(0.0):
        return "="
    return ("+" if change > 0 else "-") + text.replace("%", " pts")


def _wrong(side: Mapping[str, Any]) -> str:
    return "-" if side["wrong_hits"] is None else f"{side['wrong_hits']['expected']:.1f}"


def _interval(side: Mapping[str, Any]) -> str:
    wrong = side["wrong_hits"]
    return "-" if wrong is None else f"{wrong['low']:.1f} to {wrong['high']:.1f}"


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.1f}%"


def _dollars(amount: float | None) -> str:
    return "-" if amount is None else f"{amount:.4f} USD"


def _milliseconds(amount: float | None) -> str:
    return "-" if amount is None else f"{amount:.1f} ms"
