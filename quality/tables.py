"""Formats the report's tables in Markdown, ready to paste."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from quality.cost import Cost
from quality.figures import WINDOW
from quality.http_run import GatewayResult
from quality.offline import LEARNT, AdaptationResult, PromiseResult, Rung
from quality.peers import Comparison
from quality.traps import Tally


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(columns) + " |", "|---" * len(columns) + "|"]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)])


def share(value: float | None, digits: int = 1) -> str:
    return "-" if value is None else f"{100 * value:.{digits}f} %"


def percent(budget: float) -> str:
    return f"{100 * budget:g} %"


def raw_and_audited(raw: float, audited: float, digits: int = 2) -> str:
    """Format the figure by raw labels, then by audited ones."""
    return f"{100 * raw:.{digits}f} / {100 * audited:.{digits}f} %"


def traps(tallies: dict[float, list[Tally]], thresholds: dict[float, float]) -> str:
    columns = ["pairs", *(f"{percent(budget)} (score {thresholds[budget]:.2f})" for budget in tallies)]
    rows = []
    for at, first in enumerate(next(iter(tallies.values()), [])):
        cells = [group[at] for group in tallies.values()]
        rows.append(
            [first.kind, *(f"{c.right_served}/{c.right} right, {c.wrong_served}/{c.wrong} wrong" for c in cells)]
        )
    return table(columns, rows)


def gateway(runs: Sequence[GatewayResult]) -> str:
    columns = (
        "promise", "served", "error of all (raw / audited)", "wrong of served", "hits right", "hit rate",
        "p50 of hits", f"worst {WINDOW} (raw / audited)", "the gateway says", "hits audited", "second opinions",
    )  # fmt: skip
    return table(columns, [_gateway_row(run) for run in runs])


def _gateway_row(run: GatewayResult) -> list[str]:
    interval = f"{share(run.stated_low, 2)} to {share(run.stated_high, 2)}"
    return [
        percent(run.budget),
        share(run.served),
        raw_and_audited(run.error, run.error_audited),
        share(run.wrong_of_served),
        share(1 - run.wrong_of_served),
        share(run.hit),
        "-" if run.p50_hit_ms is None else f"{run.p50_hit_ms:.1f} ms",
        f"{run.worst} / {run.worst_audited}",
        f"{share(run.stated, 2)} ({interval})",
        share(run.audited),
        share(run.second_opinions),
    ]


def replays(rows: Sequence[PromiseResult]) -> str:
    columns = (
        "stream", "labels", "promise", "served", "of hindsight", "error of all", f"after {LEARNT} requests",
        "orders kept", f"worst {WINDOW}", "hits audited", "interval holds",
    )  # fmt: skip
    return table(columns, [_replay_row(row) for row in rows])


def _replay_row(row: PromiseResult) -> list[str]:
    hindsight = "-" if row.hindsight is None else f"{share(row.relative, 0)} of {share(row.hindsight)}"
    return [
        row.stream,
        row.labels,
        percent(row.budget),
        share(row.served),
        hindsight,
        share(row.error, 2),
        share(row.later, 2),
        share(row.kept, 0),
        str(row.worst),
        share(row.audited),
        f"{row.covered:.0%} of {row.seeds} runs",
    ]


def ladder(rungs: Sequence[Rung], budgets: Sequence[float]) -> str:
    columns = ("score", "labels", *(f"at {percent(budget)}" for budget in budgets), "P-CHR AUC")
    rows = [[r.score, r.labels, *(share(served) for served in r.served), f"{r.area:.3f}"] for r in rungs]
    return table(columns, rows)


def comparison(rows: Sequence[Comparison]) -> str:
    columns = ("measured on", "cache", "requests", "right", "wrong", "possible", "right of possible", "figures")
    cells = [
        [
            row.measured_on,
            row.cache,
            str(row.requests),
            share(row.right / row.requests),
            share(None if row.wrong is None else row.wrong / row.requests, 2),
            share(row.possible / row.requests),
            share(row.share),
            row.source,
        ]
        for row in rows
    ]
    return table(columns, cells)


def adaptation(rows: Sequence[AdaptationResult]) -> str:
    columns = ("intents", "error of all", "hit rate cold", "hit rate taught", "labels")
    cells = [[r.stream, percent(r.budget), share(r.cold), share(r.taught), str(r.labels)] for r in rows]
    return table(columns, cells)


def cost(found: Cost) -> str:
    second = "none given" if found.second_opinion is None else f"{found.second_opinion:.0f} us"
    columns = ("opinions of 4 candidates of 15 words", "evidence of 2,000 labels", "second opinion")
    return table(columns, [[f"{found.opinions:.0f} us", f"{found.shift:.0f} us", second]])
