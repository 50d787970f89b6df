"""`nearhit doctor` checks everything that a gateway needs, and reports findings with their remedies.

`machine`, `network` and `store` collect facts and derive findings from them; `command` puts all in order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

MAX_FAULTS_SHOWN = 10  # faults to repeat; `nearhit check` lists all of them


class Level(StrEnum):
    OK = "ok"
    WARNING = "warning"  # it works, but not as well or as safely as it could
    FAULT = "fault"  # it does not work


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check. `found` and `todo` are one sentence each; `todo` is empty if nothing is to be done."""

    check: str
    level: Level
    found: str
    todo: str = ""

    def as_json(self) -> dict[str, str]:
        return {"check": self.check, "level": str(self.level), "found": self.found, "todo": self.todo}


def ok(check: str, found: str) -> Finding:
    return Finding(check, Level.OK, found)


def warning(check: str, found: str, todo: str) -> Finding:
    return Finding(check, Level.WARNING, found, todo)


def fault(check: str, found: str, todo: str) -> Finding:
    return Finding(check, Level.FAULT, found, todo)


@dataclass(frozen=True, slots=True)
class Report:
    """Findings in the order of the checks. Those `left_out` were skipped for lack of a configuration."""

    findings: tuple[Finding, ...]
    left_out: tuple[str, ...] = ()

    @property
    def is_good(self) -> bool:
        return all(finding.level is not Level.FAULT for finding in self.findings)

    def as_json(self) -> dict[str, Any]:
        return {
            "ok": self.is_good,
            "findings": [finding.as_json() for finding in self.findings],
            "left_out": list(self.left_out),
        }

    def as_text(self) -> str:
        lines: list[str] = []
        for finding in self.findings:
            lines.append(f"{finding.level:<8} {finding.check:<14} {finding.found}")
            if finding.todo:
                lines.append(f"{'':<23} -> {finding.todo}")
        if self.left_out:
            lines.append(f"not checked, since there is no configuration: {', '.join(self.left_out)}")
        return "\n".join([*lines, _summary(self.findings)])


def _summary(findings: Sequence[Finding]) -> str:
    counts = {level: sum(finding.level is level for finding in findings) for level in Level}
    words = {level: f"{level}s" if level is not Level.OK and counts[level] != 1 else str(level) for level in Level}
    return ", ".join(f"{count} {words[level]}" for level, count in counts.items())
