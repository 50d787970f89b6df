"""The report of an import: one finding for each line of the old configuration, and what remains to do."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from gateway.config.errors import KeyPath, render_path


class Outcome(StrEnum):
    """The fate of a setting."""

    CARRIED = "carried over"
    CHANGED = "changed in meaning"
    MISSING = "no counterpart"


@dataclass(frozen=True, slots=True)
class Finding:
    """The outcome of one setting. `line` counts from 1."""

    line: int
    path: KeyPath
    outcome: Outcome
    text: str

    def as_json(self) -> dict[str, Any]:
        """Return the finding for JSON."""
        return {"line": self.line, "path": render_path(self.path), "outcome": self.outcome.value, "text": self.text}


@dataclass(frozen=True, slots=True)
class ImportReport:
    """The result of an import.

    `summary` says how much is carried over. `differences` hold for every file of the format. `variables` maps each
    environment variable that the new configuration reads to its purpose. `files` are those that were written.
    """

    source: str
    findings: Sequence[Finding]
    differences: Sequence[str]
    variables: Mapping[str, str]
    files: Sequence[str]
    summary: Sequence[str] = ()

    def as_json(self) -> dict[str, Any]:
        """Return the report for JSON."""
        return {
            "source": self.source,
            "files": list(self.files),
            "summary": list(self.summary),
            "findings": [finding.as_json() for finding in self.findings],
            "differences": list(self.differences),
            "variables": dict(self.variables),
        }

    def as_text(self) -> str:
        """Return the report as lines, with the findings of each outcome together."""
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        for outcome in Outcome:
            findings = [finding for finding in self.findings if finding.outcome is outcome]
            if findings:
                yield f"{outcome} ({len(findings)}):"
                yield from (f"  {self.source}:{f.line}: {render_path(f.path)}: {f.text}" for f in findings)
        if self.differences:
            yield "differences that no line shows:"
            yield from (f"  {text}" for text in self.differences)
        if self.variables:
            yield "environment variables to set:"
            yield from (f"  {name}: {purpose}" for name, purpose in self.variables.items())
        if self.summary:
            yield "in all:"
            yield from (f"  {text}" for text in self.summary)
        yield "written, and loaded without a fault:"
        yield from (f"  {file}" for file in self.files)
