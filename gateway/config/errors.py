"""Faults of a configuration: sentences with the place, the problem and the expected form."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass

KeyPath = tuple[str | int, ...]
"""The keys and list positions that lead to a value: `("routes", 0, "cache")`."""

_PLAIN_KEY = re.compile(r"[A-Za-z0-9_-]+")
_MAX_VALUE_CHARS = 60  # characters of a wrong value that a sentence repeats


@dataclass(frozen=True, slots=True)
class ConfigError:
    """One fault. `line` counts from 1; it is 0 if there are no lines (the environment)."""

    file: str
    line: int
    path: KeyPath
    message: str

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}" if self.line else self.file
        return f"{place}: {render_path(self.path)}: {self.message}"

    def as_json(self) -> dict[str, str | int]:
        """Return the fault for JSON."""
        return {"file": self.file, "line": self.line, "path": render_path(self.path), "message": self.message}


class ConfigInvalid(Exception):
    """A configuration that cannot be used. It has every fault, in reading order."""

    def __init__(self, faults: Iterable[ConfigError]) -> None:
        self.faults = sort_errors(faults)
        super().__init__("\n".join(map(str, self.faults)))


def sort_errors(faults: Iterable[ConfigError]) -> tuple[ConfigError, ...]:
    """Return the faults by file and line, each once."""
    return tuple(sorted(set(faults), key=lambda f: (f.file, f.line, render_path(f.path), f.message)))


def render_path(path: KeyPath) -> str:
    """Return a path as text, such as `routes[0].cache.exact`, or `(document)` for the whole file."""
    out = ""
    for part in path:
        if isinstance(part, int):
            out += f"[{part}]"
        elif _PLAIN_KEY.fullmatch(part):
            out += f".{part}" if out else part
        else:  # quoted, so that a key with a dot or a line break cannot pass for something else
            out += f"[{json.dumps(part)}]"
    return out or "(document)"


def format_value(value: object) -> str:
    """Return a wrong value for a sentence: text in quotes and shortened, YAML words for the rest."""
    match value:
        case None:
            return "nothing"
        case bool():
            return "true" if value else "false"
        case str():
            return repr(value if len(value) <= _MAX_VALUE_CHARS else value[:_MAX_VALUE_CHARS] + "...")
        case int() if abs(value) >= 10**18:  # Python may refuse to print it
            return "a huge number"
        case int() | float():
            return str(value)
        case dict():
            return "a mapping" if value else "an empty mapping"
        case list() | tuple():
            return "a list" if value else "an empty list"
        case _:
            return f"a {type(value).__name__}"


def closest_match(word: str, names: Iterable[str]) -> str | None:
    """Return the known word that is closest to `word`, or None if none is close."""
    by_lower = {name.lower(): name for name in names}
    matches = difflib.get_close_matches(word[:_MAX_VALUE_CHARS].lower(), by_lower, n=1, cutoff=0.6)
    return by_lower[matches[0]] if matches else None


def unknown_name(what: str, word: str, known: Iterable[str]) -> str:
    """Return a sentence such as `unknown key, did you mean 'semantic'? expected one of: exact, semantic`."""
    names = list(known)
    guess = closest_match(word, names)
    hint = f", did you mean {guess!r}?" if guess else ","
    return f"unknown {what}{hint} expected {'one of: ' if len(names) != 1 else ''}{', '.join(names)}"
