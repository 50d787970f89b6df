"""Read a configuration of another gateway, and account for each of its settings."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gateway.config.errors import ConfigError, ConfigInvalid, KeyPath, format_value
from gateway.config.yaml_loader import YamlSource, load_yaml, read_file
from gateway.features.importing.report import Finding, Outcome

_NAME = r"([A-Za-z_][A-Za-z0-9_]{0,127})"
LITELLM_VARIABLE = re.compile(rf"os\.environ/{_NAME}")
SHELL_VARIABLE = re.compile(rf"\$\{{{_NAME}\}}")
_NUMBER = re.compile(r"\d{1,12}(\.\d{1,9})?([eE][+-]?\d{1,2})?", re.ASCII)

Advice = Callable[[KeyPath], str]
"""Returns what to do about a setting that the mapping has not read."""


class _Verbatim(Mapping[str, str]):
    """Leaves `${NAME}` in a text as it is: it is a variable of nearhit's files only."""

    def __contains__(self, name: object) -> bool:
        return True

    def __getitem__(self, name: str) -> str:
        return f"${{{name}}}"

    def __iter__(self) -> Iterator[str]:
        return iter(())

    def __len__(self) -> int:
        return 0


@dataclass(frozen=True, slots=True)
class Document:
    """One file with the findings so far. `reference` matches a value that names an environment variable."""

    source: YamlSource
    reference: re.Pattern[str]
    findings: dict[tuple[KeyPath, str], Finding] = field(default_factory=dict)

    @property
    def root(self) -> Setting:
        """The whole file."""
        return Setting(self, (), self.source.value)

    def add(self, path: KeyPath, outcome: Outcome, text: str) -> None:
        """Record what became of the setting at a path and of everything below it."""
        self.findings.setdefault((path, text), Finding(self.source.locate(path)[0], path, outcome, text))

    def account(self, advice: Advice) -> tuple[Finding, ...]:
        """Return all findings in reading order, with one for each setting that the mapping has not read."""
        read = {path for path, _ in self.findings}
        around = {path[:length] for path in read for length in range(len(path))}
        for path, value in _unread((), self.source.value, read, around):
            if value is None or (path and value in ({}, [])):
                self.add(path, Outcome.CARRIED, "is empty, so there is nothing to carry over")
            else:
                self.add(path, Outcome.MISSING, advice(path))
        return tuple(sorted(self.findings.values(), key=lambda f: (f.line, self.source.locate(f.path), f.text)))


def _unread(path: KeyPath, value: Any, read: set[KeyPath], around: set[KeyPath]) -> Iterator[tuple[KeyPath, Any]]:
    """Yield the widest parts of a value of which nothing has been read. Sections of the top level are opened."""
    if path in read:
        return
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    children = list(pairs)
    if not children or (path not in around and len(path) > 1):
        yield path, value
        return
    for key, item in children:
        yield from _unread((*path, key), item, read, around)


@dataclass(frozen=True, slots=True)
class Setting:
    """A value of the file, or its absence, with the place."""

    document: Document
    path: KeyPath
    value: Any

    @property
    def is_set(self) -> bool:
        """Whether the file has the setting, with a value."""
        return self.value is not None

    @property
    def name(self) -> str:
        """The last part of the path."""
        return str(self.path[-1])

    def key(self, name: str) -> Setting:
        """Return the setting below this one, absent or not."""
        value = self.value.get(name) if isinstance(self.value, dict) else None
        return Setting(self.document, (*self.path, name), value)

    def entries(self) -> Iterator[Setting]:
        """Yield the settings of a mapping or of a list; for any other value nothing."""
        pairs = self.value.items() if isinstance(self.value, dict) else ()
        for key, value in enumerate(self.value) if isinstance(self.value, list) else pairs:
            yield Setting(self.document, (*self.path, key), value)

    def carried(self, text: str) -> None:
        """Report that the setting keeps its meaning."""
        self._report(Outcome.CARRIED, text)

    def changed(self, text: str) -> None:
        """Report that the setting has a counterpart with another meaning."""
        self._report(Outcome.CHANGED, text)

    def missing(self, text: str) -> None:
        """Report that the setting has no counterpart, and what to do instead."""
        self._report(Outcome.MISSING, text)

    def _report(self, outcome: Outcome, text: str) -> None:
        if self.is_set:
            self.document.add(self.path, outcome, text)

    def variable(self) -> str | None:
        """Return NAME of a value such as `os.environ/NAME`, or None."""
        match = self.document.reference.fullmatch(self.value) if isinstance(self.value, str) else None
        return match[1] if match else None

    def text(self) -> str | None:
        """Return the text as config.yaml writes it: `${NAME}` for a variable. Report any other value."""
        if (name := self.variable()) is not None:
            return f"${{{name}}}"
        if isinstance(self.value, str) and self.value:
            return self.value.replace("${", "$${")
        if self.is_set:
            self.missing(f"expected text, got {format_value(self.value)}; correct it and import again")
        return None

    def number(self) -> float | None:
        """Return a number of at least 0. Report any other value."""
        value = self.value
        if isinstance(value, str) and _NUMBER.fullmatch(value):  # PyYAML reads 1e-6 as text
            value = float(value)
        if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1e12:
            return float(value)
        if self.variable() is not None:
            self.missing("a variable cannot hold this number here; write the number and import again")
        elif self.is_set:
            self.missing(f"expected a number, got {format_value(value)}; correct it and import again")
        return None

    def whole(self, least: int, most: int) -> int | None:
        """Return a whole number within bounds. Report any other value."""
        value = self.number()
        if value is None or (value == int(value) and least <= value <= most):
            return None if value is None else int(value)
        self.missing(f"expected a whole number from {least} to {most}, got {value:g}; correct it and import again")
        return None


def read_document(path: Path, reference: re.Pattern[str]) -> Document:
    """Read a file. Leave list items out about which YAML's readers could disagree.

    Raise `ConfigInvalid` if the file is not readable, or if they could disagree about anything else.
    """
    source = load_yaml(read_file(path, "the configuration to import"), str(path), _Verbatim())
    document = Document(source, reference)
    whole = [fault for fault in source.faults if not _leave_out(document, fault)]
    if whole:
        raise ConfigInvalid(whole)
    return document


def _leave_out(document: Document, fault: ConfigError) -> bool:
    """Leave the list item out that has this fault. Return False if no item has it."""
    at = next((at for at, part in enumerate(fault.path) if isinstance(part, int)), None)
    if at is None:
        return False
    *around, index = fault.path[: at + 1]
    listed: Any = document.source.value
    for part in around:
        listed = listed[part]
    listed[index] = None
    item = fault.path[: at + 1]
    document.findings[item, fault.message] = Finding(
        fault.line, item, Outcome.MISSING, f"{fault.message}; the entry is left out: correct it and import again"
    )
    return True
