"""The report as Markdown tables, for docs/gpu.md. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from bench.gpu.stages import STAGES, Outcome


def tables(outcomes: Iterable[Outcome]) -> str:
    """Return a table for each group of rows with equal columns, then what was skipped."""
    about = {stage.name: stage.about for stage in STAGES}
    lines = []
    for outcome in outcomes:
        lines += [f"### {outcome.stage}: {about[outcome.stage]}", ""]
        groups: dict[tuple[str, ...], list[Mapping[str, Any]]] = {}
        for row in outcome.rows:
            if "skipped" not in row and "failed" not in row:
                groups.setdefault(tuple(row), []).append(row)
        for columns, rows in groups.items():
            lines += [_line(name.replace("_", " ") for name in columns), _line("---" for _ in columns)]
            lines += [_line(_text(row[name]) for name in columns) for row in rows]
            lines.append("")
        if outcome.reason:
            lines += [f"{outcome.status}: {outcome.reason}", ""]
    return "\n".join(lines)


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _text(value: object) -> str:
    return f"{value:,}" if isinstance(value, int | float) and not isinstance(value, bool) else str(value)
