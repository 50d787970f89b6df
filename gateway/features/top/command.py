"""`nearhit top` polls a running gateway and draws its figures on a terminal."""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import sys
from collections import deque
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress

from rich.console import Console, ConsoleDimensions, ConsoleOptions, Group, RenderableType, RenderResult
from rich.live import Live
from rich.table import Table
from rich.text import Text

from gateway.cli.admin_client import AdminClient, admin_address, call_gateway, connect
from gateway.cli.output import GOOD, CommandFailed, pluralise, print_result, printable
from gateway.cli.parser import Command, number_between
from gateway.cli.signals import stop_event
from gateway.features.top.figures import Report, RouteFigures, TopFigures, figures

WINDOW_S = 10.0  # for rates and latencies: figures of a shorter window jump, a longer one hides new events
MAX_REPORTS = 128
TIMEOUT_S = 10.0
NAME = 21  # columns; longer names are cut
HEAD, BAD = "bold", "red"


def register(command: Command) -> None:
    command.define(
        run,
        "",
        "--once",
        "--json --refresh 5",
        about="Rates and latencies cover the last 10 s; with --once, the time since the gateway started. With --json "
        "each refresh prints one JSON object per line. A terminal shows colours unless NO_COLOR is set. Ctrl-C "
        "ends it.",
        asks_gateway=True,
    )
    command.add_argument("--once", action="store_true", help="print the figures since the gateway started, and exit")
    text = "seconds between two refreshes, from 0.1 to 60; default: 1"
    command.add_argument("--refresh", type=number_between(0.1, 60.0), default=1.0, metavar="SECONDS", help=text)


def run(arguments: argparse.Namespace) -> int:
    if not arguments.once:
        asyncio.run(_watch(arguments))
        return GOOD
    report = figures(call_gateway(arguments, _report), None)
    return print_result(arguments, report.as_json(), _text(Console(), page(report)))


async def _watch(arguments: argparse.Namespace) -> None:
    """Draw on a separate screen of a terminal; elsewhere print page after page, or one JSON object per line."""
    console = Console()
    screen = Live(console=console, screen=True, auto_refresh=False)
    try:
        async for report in _follow(arguments):
            shown = page(report) if isinstance(report, TopFigures) else Text(f"retrying: {report}")
            if console.is_interactive and not arguments.json:
                screen.start()
                console.size = _size()
                screen.update(Fitted(shown), refresh=True)
            elif isinstance(report, TopFigures) or not arguments.json:
                value = report.as_json() if isinstance(report, TopFigures) else {}
                print_result(arguments, value, _text(console, shown) + "\n")
                sys.stdout.flush()
    finally:
        screen.stop()


class TopWindow:
    """The reports of the last `WINDOW_S`; the newest is compared with the oldest."""

    def __init__(self) -> None:
        self._reports: deque[Report] = deque(maxlen=MAX_REPORTS)

    def add(self, report: Report) -> TopFigures:
        self._reports.append(report)
        while len(self._reports) > 2 and report["now"] - self._reports[1]["now"] >= WINDOW_S:
            self._reports.popleft()
        return figures(report, self._reports[0] if len(self._reports) > 1 else None)


async def _follow(arguments: argparse.Namespace) -> AsyncIterator[TopFigures | CommandFailed]:
    """Yield figures until a signal. An unreachable gateway raises at first, and later yields the error."""
    window, place = TopWindow(), admin_address(arguments)
    with stop_event() as stop:
        async with connect(place) as admin:
            yield window.add(await _report(admin))
            while True:
                with suppress(TimeoutError):
                    async with asyncio.timeout(arguments.refresh):
                        await stop.wait()
                    return
                try:
                    yield window.add(await _report(admin))
                except CommandFailed as error:
                    yield error


async def _report(admin: AdminClient) -> Report:
    """Fetch a report. Raises `CommandFailed`."""
    try:
        async with asyncio.timeout(TIMEOUT_S):
            return await admin.get("/admin/stats")
    except TimeoutError:
        raise CommandFailed(f"the gateway did not answer within {TIMEOUT_S:g} s") from None


def _size() -> ConsoleDimensions:
    """Return the current size. Exported COLUMNS and LINES keep the size that the terminal had at its start."""
    size = os.get_terminal_size(sys.stdout.fileno())
    return ConsoleDimensions(*(shutil.get_terminal_size() if 0 in size else size))


def _text(console: Console, shown: RenderableType) -> str:
    with console.capture() as captured:
        console.print(shown)
    return captured.get().rstrip("\n")


class Fitted:
    """A page that is cut to the height of the terminal; the last line then gives the number of hidden lines."""

    def __init__(self, shown: RenderableType) -> None:
        self._shown = shown

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        rows = options.height or options.max_height
        lines = console.render_lines(self._shown, options.reset_height(), pad=False, new_lines=True)
        if len(lines) > rows:
            more = f"({len(lines) - rows + 1} more lines: enlarge the terminal)"
            lines = [*lines[: rows - 1], list(console.render(Text(more, no_wrap=True), options))]
        for line in lines:
            yield from line


def page(report: TopFigures) -> Group:
    """Return the page; it fits in 80 columns, however long the names are."""
    more = f" and {report.gateways - 1} more" if report.gateways > 1 else ""
    stretch = "since start" if report.since_start else f"the last {duration(report.seconds)}"
    return Group(
        _line(
            f"nearhit {report.listen}{more}  policy {report.policy[:12]}  up {duration(report.up_s)}  ({stretch})", HEAD
        ),
        _line(
            f"{report.requests_per_s:.1f} requests/s   hit rate {_percent(report.hit_rate)}   shed {report.shed:.0f}   "
            f"saved in all: {report.tokens_saved:,.0f} tokens, ${report.dollars_saved:,.2f}"
        ),
        *_problems(report),
        Text(),
        _verdicts(report),
        Text(),
        _backends(report),
        Text(),
        _routes(report),
    )


def _verdicts(report: TopFigures) -> Table:
    table = _table("verdict", share=9, per_s=10, p50_ms=10, p95_ms=10)
    for verdict, of in report.verdicts.items():
        table.add_row(verdict, _percent(of.share), f"{of.per_s:.1f}", _number(of.p50_ms), _number(of.p95_ms))
    return table


def _backends(report: TopFigures) -> Table:
    table = _table("backend", in_flight=9, limit=6, queued=6, upstreams=9)
    table.add_column("breaker", no_wrap=True)
    for name, of in report.backends.items():
        upstreams, breaker = f"{of.upstreams}/{of.all_upstreams}", _line(of.breaker.replace("_", "-"))
        table.add_row(
            *(_line(name), str(of.inflight), str(of.limit), str(of.queued), upstreams, breaker),
            style="" if of.breaker == "closed" else BAD,
        )
    return table


def _routes(report: TopFigures) -> Table:
    table = _table("route", large_share=11)
    table.add_column("wrong share of served hits (95 % interval)", no_wrap=True)
    for name, route in report.routes.items():
        table.add_row(_line(name), _percent(route.large_share), _wrong(route))
    return table


def _table(name: str, **numbers: int) -> Table:
    """Return a table with columns of fixed width, so that nothing moves when a figure grows."""
    table = Table(box=None, pad_edge=False, padding=(0, 0, 0, 2), header_style=HEAD)
    table.add_column(name, width=NAME, no_wrap=True)
    for title, width in numbers.items():
        table.add_column(title.replace("_", " "), width=width, justify="right", no_wrap=True)
    return table


def _problems(report: TopFigures) -> Iterator[Text]:
    if report.store_breaker != "closed":
        yield _line("the store fails, and its circuit breaker is not closed: see `nearhit doctor`", BAD)
    if report.policy_faults:
        faults = pluralise(report.policy_faults, "fault")
        yield _line(f"the last policy was rejected with {faults}: see `nearhit check`", BAD)
    if some := {cause: count for cause, count in report.stalls.items() if count}:
        causes = ", ".join(f"{cause} {count:.0f}" for cause, count in some.items())
        stood = pluralise(round(sum(some.values())), "time")
        yield _line(f"the event loop stalled {stood}, for 20 ms or more ({causes})", BAD)
    if not report.index_ready:
        yield _line("the index is still loading: similar questions may be missed")
    if left := report.migration.get("left"):
        done = report.migration.get("done", 0.0)
        yield _line(f"re-embedding for another model: {done:,.0f} of {done + left:,.0f} entries are done")


def _line(text: str, style: str = "") -> Text:
    return Text(printable(text), style, no_wrap=True, overflow="ellipsis")


def duration(seconds: float) -> str:
    """Return a duration as text, such as `3 h 05 min`."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days} d {hours:02} h"
    if hours:
        return f"{hours} h {minutes:02} min"
    return f"{minutes} min {rest:02} s" if minutes else f"{rest} s"


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.1f} %"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"


def _wrong(route: RouteFigures) -> str:
    if route.wrong_hits is None:
        return "-"
    return f"{_percent(route.wrong_hits)} ({_percent(route.wrong_low)} to {_percent(route.wrong_high)})"
