"""The report on savings as Markdown for a mail or a chat, and as a badge for a README. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import Any

from gateway.features.spend.savings import milliseconds, money, percent, saved_text

# Verdana 11, as badges have it, is some 6.6 pixels a character. `textLength` makes the text fit.
CHARACTER_PX = 6.6
PADDING_PX = 10


def markdown(found: Mapping[str, Any]) -> str:
    """Return a `SavingsReport` as Markdown."""
    spent = found["spent"]
    lines = [
        "# What nearhit saved",
        "",
        f"{_day(found['since'])} to {_day(found['until'])} (UTC)",
        "",
        f"**{found['sentence']}.**",
        "",
    ]
    if found["routing_sentence"] is not None:
        lines += [f"{found['routing_sentence']}.", ""]
    lines += [
        "No call has a price, so nothing is known of dollars: see `nearhit prices show`."
        if spent is None
        else f"Net: **{money(found['net'])}**, after the costs of audits and trials. "
        f"The calls of clients cost {money(spent)}.",
        "",
        *table(["What it cost", ""], _costs(found)),
        "",
        *table(["Where the answers came from", "Requests"], _sources(found["cache"])),
    ]
    if len(found["routes"]) > 1:
        names = ["Route", "Requests", "Answered", "Saved", "Cost", "Audited", "Wrong"]
        lines += ["", *table(names, [_route(each) for each in found["routes"]])]
    return "\n".join([*lines, "", *_notes(found)])


def badge(found: Mapping[str, Any]) -> str:
    """Return a badge for a README, as SVG."""
    cache = found["cache"]
    rate = f"{100 * cache['answered'] / cache['requests']:.0f} %" if cache["requests"] else "no requests"
    saved = saved_text(cache) if found["net"] is None else money(found["net"])
    value = f"{rate}, {saved} saved" if cache["requests"] else rate
    name, title = "answered by nearhit", found["sentence"]
    left, right = (round(CHARACTER_PX * len(text)) + PADDING_PX for text in (name, value))
    texts = "".join(
        f'<text x="{x}" y="14" textLength="{width - PADDING_PX}" lengthAdjust="spacingAndGlyphs">{escape(text)}</text>'
        for text, x, width in ((name, left / 2, left), (value, left + right / 2, right))
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{left + right}" height="20" role="img" '
        f'aria-label="{escape(name)}: {escape(value)}"><title>{escape(title)}</title>'
        f'<clipPath id="r"><rect width="{left + right}" height="20" rx="3"/></clipPath><g clip-path="url(#r)">'
        f'<rect width="{left}" height="20" fill="#444"/>'
        f'<rect x="{left}" width="{right}" height="20" fill="#1a7f4b"/></g>'
        f'<g fill="#fff" text-anchor="middle" font-family="Verdana,DejaVu Sans,sans-serif" font-size="11">{texts}</g>'
        "</svg>"
    )


def tiles(found: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """Return the figures of a picture: a name, a value, and a note."""
    cache, routing = found["cache"], found["routing"]
    rate = percent(cache["answered"] / cache["requests"]) if cache["requests"] else "-"
    share, before, after = cache["wrong_share"], cache["p50_backend_ms"], cache["p50_hit_ms"]
    known = share["share"] is not None
    times = "-" if before is None or after is None else f"{milliseconds(before)} to {milliseconds(after)} ms"
    interval = (
        f"{percent(share['low'])} to {percent(share['high'])} of the semantic hits" if known else "nothing is known"
    )
    found_tiles = [
        ("answered", rate, f"{cache['answered']:,} of {cache['requests']:,} requests"),
        (
            "saved, net",
            "not priced" if found["net"] is None else money(found["net"]),
            f"after {money(found['costs']['audits'] + found['costs']['trials'])} of costs",
        ),
        ("audited wrong", f"{cache['wrong']:,} of {cache['audited']:,}" if cache["audited"] else "-", interval),
        ("median time", times, "of the hits, from a backend and from here"),
    ]
    if routing is not None and routing["kept"]["share"] is not None:
        kept = f"kept quality in {percent(routing['kept']['share'])} of {routing['audited'] - routing['undecided']:,}"
    else:
        kept = "none of them was audited"
    if routing is not None:
        found_tiles.append(("to the light model", f"{routing['light']:,} of {routing['requests']:,}", kept))
    return found_tiles


def _costs(found: Mapping[str, Any]) -> list[list[str]]:
    costs, routing = found["costs"], found["routing"]
    rows = [["Audits", money(costs["audits"])]]
    if routing is not None:
        trials = f"Calls besides those that answered ({costs['trials_failed']:,} failed trials)"
        rows.append([trials, money(costs["trials"])])
    return [
        *rows,
        ["Embedding", f"{costs['embedding_s']:,.1f} s"],
        ["CPU of requests and of learning", f"{costs['cpu_s']:,.1f} s and {costs['learning_cpu_s']:,.1f} s"],
    ]


def _sources(cache: Mapping[str, Any]) -> list[list[str]]:
    names = {
        "exact": "The same request before",
        "semantic": "A question in other words",
        "stale": "An answer past its time",
        "coalesced": "The answer to an equal request in flight",
    }
    rows = [[name, f"{cache[key]:,}"] for key, name in names.items() if cache[key]]
    return [*rows, ["Backends, errors among them", f"{cache['requests'] - cache['answered']:,}"]]


def _route(each: Mapping[str, Any]) -> list[str]:
    cost = "not priced" if each["cost"] is None else money(each["cost"])
    counts = [f"{each[name]:,}" for name in ("requests", "answered")]
    return [cell(each["route"]), *counts, money(each["saved"]), cost, f"{each['audited']:,}", f"{each['wrong']:,}"]


def _notes(found: Mapping[str, Any]) -> list[str]:
    notes = [
        "A hit saves what its answer cost when it was made. Audits compare semantic hits with fresh answers; the "
        "interval has all audits that the routes remember. CPU is that of the gateways as a whole.",
    ]
    if found["not_priced"]:
        notes.append(f"{found['not_priced']:,} calls have no price, and count in no sum.")
    if found["routing"] is not None and found["routing"]["not_priced"]:
        notes.append(f"{found['routing']['not_priced']:,} calls of the light model count in no savings: no price.")
    return notes


def table(names: list[str], rows: list[list[str]]) -> list[str]:
    """Return a table of Markdown, with all columns but the first to the right."""
    rule = ["---", *["---:"] * (len(names) - 1)]
    return [f"| {' | '.join(row)} |" for row in (names, rule, *rows)]


def cell(text: str) -> str:
    """Return a text for a cell of a table."""
    return text.replace("|", "\\|")


def _day(time: str) -> str:
    return time[:16].replace("T", " ")
