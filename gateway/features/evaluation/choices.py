"""The prompts of `nearhit eval`, what is expected of them, and the comparison with what the policy chose. Pure, but for
reading the files.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from gateway.admin.explanation import Explanation
from gateway.cli.output import CommandFailed, pluralise
from gateway.config.errors import unknown_name
from gateway.config.policy.parameters import untuned

MAX_FAULTS = 20
MAX_SHOWN = 20  # of the prompts that went elsewhere


@dataclass(frozen=True, slots=True)
class Prompt:
    """One line of the prompts."""

    where: str  # FILE:LINE
    id: str | None
    request: Mapping[str, Any]  # as `parse_request` reads it


@dataclass(frozen=True, slots=True)
class ExpectedChoice:
    """One line of the expectations: the name of a tier or of a backend."""

    where: str
    id: str | None
    name: str


def read_prompts(path: Path, model: str) -> list[Prompt]:
    """Read one prompt a line: a text, or an object with `prompt`, or a request. Raise `CommandFailed` with the faults.

    Prompts that are only a text get `model`.
    """
    return _read(path, "prompts", lambda where, line: _prompt(where, line, model))


def read_expected(path: Path, known: Set[str] | None) -> list[ExpectedChoice]:
    """Read one expectation a line. Raise `CommandFailed` with the faults.

    Names must be among the tiers and backends of `known`, unless it is None.
    """
    return _read(path, "expectations", lambda where, line: _expected(where, line, known))


def _read(path: Path, what: str, parse: Any) -> list[Any]:
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise CommandFailed(f"{path}: cannot be read ({error.strerror}), expected a file of {what}") from None
    rows, faults = [], []
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                rows.append(parse(f"{path}:{number}", _value(line)))
            except ValueError as error:
                faults.append(f"{path}:{number}: {error}")
    if faults:
        more = [f"... and {len(faults) - MAX_FAULTS} more"] if len(faults) > MAX_FAULTS else []
        raise CommandFailed("\n".join([*faults[:MAX_FAULTS], *more]))
    if not rows:
        raise CommandFailed(f"{path}: the file is empty, expected one of the {what} a line")
    return rows


def _value(line: bytes) -> object:
    """Return the JSON of a line that begins as an object or a text of JSON, and otherwise its text."""
    try:
        text = line.decode().strip()
    except UnicodeDecodeError:
        raise ValueError("not UTF-8, expected text or JSON") from None
    if text[0] not in '{"':
        return text
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise ValueError(f"not valid JSON: {error}") from None


def _prompt(where: str, value: object, model: str) -> Prompt:
    if isinstance(value, str):
        value = {"prompt": value}
    if not isinstance(value, dict):
        raise ValueError('expected a text, {"prompt": "..."} or a request')
    name = _id(value)
    rest = {key: each for key, each in value.items() if key != "id"}
    text = rest.get("prompt")
    if "prompt" not in rest or "path" in rest:
        return Prompt(where, name, rest)
    if not isinstance(text, str) or not text.strip():
        raise ValueError("prompt: expected the text of a question")
    if set(rest) - {"prompt", "model"}:
        others = ", ".join(sorted(set(rest) - {"prompt", "model"}))
        raise ValueError(
            f'{others}: expected only "id" and "model" next to "prompt", or a request with "path" and "body"'
        )
    body = {"model": rest.get("model", model), "messages": [{"role": "user", "content": text}]}
    return Prompt(where, name, body)


def _expected(where: str, value: object, known: Set[str] | None) -> ExpectedChoice:
    identity = None
    if isinstance(value, dict):
        given = [key for key in ("tier", "backend") if key in value]
        if len(given) != 1:
            raise ValueError('expected {"id": "...", "tier": "large"}, or "backend" instead of "tier"')
        identity, value = _id(value), value[given[0]]
    if not isinstance(value, str) or not value:
        raise ValueError("expected the name of a tier or of a backend")
    if known is not None and value not in known:
        raise ValueError(unknown_name(f"tier or backend {value!r}", value, sorted(known)))
    return ExpectedChoice(where, identity, value)


def _id(value: Mapping[str, Any]) -> str | None:
    identity = value.get("id")
    if identity is None:
        return None
    if isinstance(identity, bool) or not isinstance(identity, str | int):
        raise ValueError("id: expected a text or a whole number")
    return str(identity)


def paired(prompts: Sequence[Prompt], expected: Sequence[ExpectedChoice]) -> list[tuple[Prompt, ExpectedChoice]]:
    """Pair prompts with expectations: by `id` if the expectations have ids, otherwise line by line.

    Raise `CommandFailed` with the lines that have no partner.
    """
    if all(each.id is None for each in expected):
        if len(prompts) != len(expected):
            longer: Sequence[Prompt | ExpectedChoice] = prompts if len(prompts) > len(expected) else expected
            raise CommandFailed(
                f"{longer[min(len(prompts), len(expected))].where}: this line has no partner, because there are "
                f"{pluralise(len(prompts), 'prompt')} and {pluralise(len(expected), 'expectation')}, expected as many"
            )
        return list(zip(prompts, expected, strict=True))
    by_id = {each.id: each for each in expected}
    faults = [*_doubtful(expected), *_doubtful(prompts)]
    faults += [f"{each.where}: no expectation has the id {each.id!r}" for each in prompts if each.id not in by_id]
    ids = {each.id for each in prompts}
    faults += [f"{each.where}: no prompt has the id {each.id!r}" for each in expected if each.id not in ids]
    if faults:
        more = [f"... and {len(faults) - MAX_FAULTS} more"] if len(faults) > MAX_FAULTS else []
        raise CommandFailed("\n".join([*faults[:MAX_FAULTS], *more]))
    return [(prompt, by_id[prompt.id]) for prompt in prompts]


def _doubtful(lines: Sequence[Prompt] | Sequence[ExpectedChoice]) -> Iterator[str]:
    seen: dict[str | None, str] = {}
    for each in lines:
        if each.id is None:
            yield f"{each.where}: the line has no id, expected one on every line, or on none"
        elif each.id in seen:
            yield f"{each.where}: the id {each.id!r} is that of {seen[each.id]}, expected each id once"
        seen.setdefault(each.id, each.where)


@dataclass(slots=True)
class Count:
    prompts: int = 0
    as_expected: int = 0

    @property
    def share(self) -> float:
        return self.as_expected / self.prompts if self.prompts else 0.0

    def add(self, *, right: bool) -> None:
        self.prompts += 1
        self.as_expected += right

    def as_json(self) -> dict[str, Any]:
        return {"prompts": self.prompts, "as_expected": self.as_expected, "share": self.share}


@dataclass(slots=True)
class Evaluation:
    """How often the choice was the expected one: in all, by expected name, by signal and by route."""

    all: Count = field(default_factory=Count)
    chosen: dict[str, dict[str, int]] = field(default_factory=dict)  # by expected name, then by chosen name
    signals: dict[str, Count] = field(default_factory=dict)
    routes: dict[str, Count] = field(default_factory=dict)
    scored_by: dict[str, int] = field(default_factory=dict)
    others: list[dict[str, Any]] = field(default_factory=list)  # the prompts that went elsewhere

    def add(self, prompt: Prompt, expected: ExpectedChoice, explanation: Explanation) -> None:
        right = expected.name in (explanation.tier, explanation.backend, untuned(explanation.backend))
        chosen = expected.name if right else explanation.tier or explanation.backend
        self.all.add(right=right)
        counts = self.chosen.setdefault(expected.name, {})
        counts[chosen] = counts.get(chosen, 0) + 1
        self.signals.setdefault(explanation.signal, Count()).add(right=right)
        self.routes.setdefault(explanation.route, Count()).add(right=right)
        if explanation.scored_by:
            self.scored_by[explanation.scored_by] = self.scored_by.get(explanation.scored_by, 0) + 1
        if not right:
            self.others.append(
                {
                    "at": prompt.where,
                    "id": prompt.id,
                    "expected": expected.name,
                    "chosen": chosen,
                    "backend": explanation.backend,
                    "route": explanation.route,
                    "signal": explanation.signal,
                    "reason": explanation.reason,
                    "complexity": explanation.complexity,
                }
            )

    def as_json(self) -> dict[str, Any]:
        return {
            "ok": True,
            **self.all.as_json(),
            "chosen": self.chosen,
            "signals": {name: count.as_json() for name, count in self.signals.items()},
            "routes": {name: count.as_json() for name, count in self.routes.items()},
            "scored_by": self.scored_by,
            "others": self.others,
        }

    def as_text(self) -> str:
        names = list(dict.fromkeys([*self.chosen, *(name for counts in self.chosen.values() for name in counts)]))
        tiers = [
            [name, *(str(counts.get(each, 0)) for each in names), f"{counts.get(name, 0) / sum(counts.values()):.1%}"]
            for name, counts in self.chosen.items()
        ]
        parts = [
            f"{pluralise(self.all.prompts, 'prompt')}, {self.all.as_expected} as expected ({self.all.share:.1%})",
            table([["expected", *(f"to {name}" for name in names), "as expected"], *tiers]),
            table([["signal", "prompts", "as expected"], *_rows(self.signals)]),
        ]
        if len(self.routes) > 1:
            parts.append(table([["route", "prompts", "as expected"], *_rows(self.routes)]))
        if self.scored_by:
            parts.append("\n".join(f"scored by {scorer}: {count}" for scorer, count in self.scored_by.items()))
        if self.others:
            shown = [_line(each) for each in self.others[:MAX_SHOWN]]
            more = [f"... and {len(self.others) - MAX_SHOWN} more; --json lists all"] * (len(self.others) > MAX_SHOWN)
            parts.append("\n".join([*shown, *more]))
        return "\n\n".join(parts)


def _rows(counts: Mapping[str, Count]) -> Iterator[list[str]]:
    for name, count in sorted(counts.items(), key=lambda item: -item[1].prompts):
        yield [name, str(count.prompts), f"{count.share:.1%}"]


def table(rows: Sequence[Sequence[str]]) -> str:
    """Return rows as text: the first column to the left, the others to the right."""
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
    lines = (
        "  ".join(
            [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
        )
        for row in rows
    )
    return "\n".join(lines)


def _line(other: Mapping[str, Any]) -> str:
    score = "" if other["complexity"] is None else f", complexity {other['complexity']:.2f}"
    return f"{other['at']}: expected {other['expected']}, got {other['chosen']} (by {other['signal']}{score})"
