"""What is wrong with a configuration, said in sentences that name the place and what was expected."""

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
    """One thing that is wrong. `line` counts from 1; it is 0 where there are no lines (the environment)."""

    file: str
    line: int
    path: KeyPath
    message: str

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}" if self.line else self.file
        return f"{place}: {render_path(self.path)}: {self.message}"

    def as_json(self) -> dict[str, str | int]:
        """The fault as machines read it."""
        return {"file": self.file, "line": self.line, "path": render_path(self.path), "message": self.message}


class ConfigInvalid(Exception):
    """A configuration that cannot be used; carries every fault that was found, in reading order."""

    def __init__(self, faults: Iterable[ConfigError]) -> None:
        self.faults = sort_errors(faults)
        super().__init__("\n".join(map(str, self.faults)))


def sort_errors(faults: Iterable[ConfigError]) -> tuple[ConfigError, ...]:
    """The faults by file and line, each once."""
    return tuple(sorted(set(faults), key=lambda f: (f.file, f.line, render_path(f.path), f.message)))


def render_path(path: KeyPath) -> str:
    """`routes[0].cache.exact`; `(document)` for the file as a whole."""
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
    """A wrong value as a sentence names it: text in quotes and shortened, YAML words for the rest."""
    match value:
        case None:
            return "nothing"
        case bool():
            return "true" if value else "false"
        case str():
            return repr(value if len(value) <= _MAX_VALUE_CHARS else value[:_MAX_VALUE_CHARS] + "...")
        case int() if abs(value) >= 10**18:  # a longer one says nothing more, and may not even be printable
            return "a huge number"
        case int() | float():
            return str(value)
        case dict():
            return "a mapping" if value else "an empty mapping"
        case list() | tuple():
            return "a list" if value else "an empty list"
        case _:
            return f"a {type(value).__name__}"


def closest_match(word: str, known: Iterable[str]) -> str | None:
    """The known word that `word` was probably meant to be."""
    by_lower = {name.lower(): name for name in known}
    found = difflib.get_close_matches(word[:_MAX_VALUE_CHARS].lower(), by_lower, n=1, cutoff=0.6)
    return by_lower[found[0]] if found else None


def unknown_name(what: str, word: str, known: Iterable[str]) -> str:
    """`unknown key, did you mean 'semantic'? expected one of: exact, semantic`."""
    names = list(known)
    guess = closest_match(word, names)
    hint = f", did you mean {guess!r}?" if guess else ","
    return f"unknown {what}{hint} expected {'one of: ' if len(names) != 1 else ''}{', '.join(names)}"
