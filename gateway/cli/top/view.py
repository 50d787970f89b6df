"""Figures as lines of a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum

from gateway.cli.client import several
from gateway.cli.top.figures import Figures, OfRoute

NAME = 22  # characters of a name; longer ones are cut
MARK = "\u2026"


class Tone(Enum):
    """The value is the number of the escape sequence (ECMA-48, select graphic rendition); 0 is as it is."""

    PLAIN = 0
    HEAD = 1
    BAD = 31


@dataclass(frozen=True, slots=True)
class Line:
    text: str
    tone: Tone = Tone.PLAIN


def lines(figures: Figures) -> Iterator[Line]:
    """At most 80 columns, whatever the names are."""
    who = f"nearhit {figures.listen}{_of(figures)}"
    yield Line(f"{who}  policy {figures.policy[:12]}  up {duration(figures.up_s)}  ({_stretch(figures)})", Tone.HEAD)
    yield Line(
        f"{figures.requests_per_s:.1f} requests/s   hit rate {_percent(figures.hit_rate)}   shed {figures.shed:.0f}   "
        f"saved in all: {figures.tokens_saved:,.0f} tokens, ${figures.dollars_saved:,.2f}"
    )
    yield from _trouble(figures)
    yield Line("")
    yield Line(f"{'verdict':<{NAME}}{'share':>10}{'per s':>12}{'p50 ms':>12}{'p95 ms':>12}", Tone.HEAD)
    for verdict, of in figures.verdicts.items():
        yield Line(
            f"{verdict:<{NAME}}{_percent(of.share):>10}{of.per_s:>12.1f}{_number(of.p50_ms):>12}{_number(of.p95_ms):>12}"
        )
    yield Line("")
    yield Line(f"{'backend':<{NAME}}{'in flight':>10}{'limit':>8}{'queued':>8}{'upstreams':>11}  breaker", Tone.HEAD)
    for name, backend in figures.backends.items():
        upstreams = f"{backend.upstreams}/{backend.all_upstreams}"
        yield Line(
            f"{_name(name)}{backend.inflight:>10}{backend.limit:>8}{backend.queued:>8}{upstreams:>11}  "
            f"{backend.breaker.replace('_', '-')}",
            Tone.PLAIN if backend.breaker == "closed" else Tone.BAD,
        )
    yield Line("")
    yield Line(f"{'route':<{NAME}}{'large share':>12}   wrong of the hits served (95 % interval)", Tone.HEAD)
    for name, route in figures.routes.items():
        yield Line(f"{_name(name)}{_percent(route.large_share):>12}   {_wrong(route)}")


def _trouble(figures: Figures) -> Iterator[Line]:
    if figures.store_breaker != "closed":
        yield Line("the store has failed and is left alone for a moment: see `nearhit doctor`", Tone.BAD)
    if figures.policy_faults:
        faults = several(figures.policy_faults, "fault")
        yield Line(f"the last policy was refused, with {faults}: see `nearhit check`", Tone.BAD)
    if some := {cause: count for cause, count in figures.stalls.items() if count}:
        causes = ", ".join(f"{cause} {count:.0f}" for cause, count in some.items())
        stood = several(round(sum(some.values())), "time")
        yield Line(f"the event loop stood still {stood}, 20 ms or more ({causes})", Tone.BAD)
    if not figures.index_ready:
        yield Line("the index is still being read: not every question is found by similarity")
    if left := figures.migration.get("left"):
        done = figures.migration.get("done", 0.0)
        yield Line(f"embedding anew, for another model: {done:,.0f} of {done + left:,.0f} entries are done")


def drawn(shown: Sequence[Line], columns: int, rows: int | None, *, colour: bool) -> str:
    """Cut to the size of the terminal; `rows` None: as many as there are."""
    if rows is not None and len(shown) > rows:
        shown = [*shown[: rows - 1], Line(f"({len(shown) - rows + 1} more lines: make the terminal higher)")]
    return "\n".join(_painted(line.tone, cut(line.text, columns), colour) for line in shown)


def _painted(tone: Tone, text: str, colour: bool) -> str:
    return f"\x1b[{tone.value}m{text}\x1b[0m" if colour and tone is not Tone.PLAIN else text


def cut(text: str, columns: int) -> str:
    """Nothing that a terminal would take for a command, and no more than fits."""
    clean = "".join(sign if sign.isprintable() else "?" for sign in text)
    return clean if len(clean) <= columns else clean[: max(0, columns - 1)] + MARK


def duration(seconds: float) -> str:
    """Such as 3 h 05 min."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days} d {hours:02} h"
    if hours:
        return f"{hours} h {minutes:02} min"
    return f"{minutes} min {rest:02} s" if minutes else f"{rest} s"


def _of(figures: Figures) -> str:
    return f" and {figures.gateways - 1} more" if figures.gateways > 1 else ""


def _stretch(figures: Figures) -> str:
    return "all of it" if figures.since_start else f"the last {duration(figures.seconds)}"


def _name(name: str) -> str:
    return f"{cut(name, NAME - 1):<{NAME}}"


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.1f} %"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"


def _wrong(route: OfRoute) -> str:
    if route.wrong_hits is None:
        return "-"
    return f"{_percent(route.wrong_hits)} ({_percent(route.wrong_low)} to {_percent(route.wrong_high)})"
