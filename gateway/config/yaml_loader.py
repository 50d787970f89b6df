"""Read YAML text into plain values, with the line of each value.

The loader uses PyYAML's parser and constructs only mappings, lists, text, numbers, booleans and null. It has bounds,
because a configuration may come over the network.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from gateway.config.errors import ConfigError, ConfigInvalid, KeyPath, format_value
from gateway.config.yaml_values import NodeReader

MAX_BYTES = 2**20
_MAX_VALUES = 20_000  # in one file with every anchor expanded: a bomb of nine lines has billions
_MAX_DEPTH = 32

_LINE_BREAK = re.compile(rb"\r\n|\r|\n")


@dataclass(frozen=True, slots=True)
class YamlSource:
    """One file. `faults` are those that leave the rest readable."""

    file: str
    value: dict[str, Any]
    marks: Mapping[KeyPath, tuple[int, int]]
    faults: tuple[ConfigError, ...]
    substituted: Mapping[KeyPath, str]  # the original text of values with `${VAR}`
    unreadable: frozenset[KeyPath]  # values that a fault has replaced: further faults would only repeat it
    warnings: tuple[ConfigError, ...] = ()

    def locate(self, path: KeyPath) -> tuple[int, int]:
        """Return line and column, from 1, of a key or list item, or of the nearest one around it that exists."""
        while path not in self.marks:
            path = path[:-1]
        return self.marks[path]

    def fault(self, path: KeyPath, message: str) -> ConfigError:
        """Return a fault at `path`. It shows the name of a variable and not its value, which may be a secret."""
        if (written := self.substituted.get(path)) is not None:
            message = message.replace(format_value(self._value_at(path)), format_value(written))
        return ConfigError(self.file, self.locate(path)[0], path, message)

    def _value_at(self, path: KeyPath) -> object:
        value: Any = self.value
        for part in path:
            value = value[part]
        return value


def load_yaml(content: bytes, file: str, environ: Mapping[str, str] | None) -> YamlSource:
    """Read one document whose top level is a mapping.

    `${VAR}` in text is replaced from `environ`; None forbids it. Raise `ConfigInvalid` for faults of syntax, encoding
    or bounds, which make the file unreadable. All other faults are in `YamlSource.faults`.
    """
    if len(content) > MAX_BYTES:
        raise _fatal_error(file, 1, f"larger than {MAX_BYTES} bytes, expected a smaller file")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = 1 + len(_LINE_BREAK.findall(content, 0, error.start))
        raise _fatal_error(file, line, f"invalid UTF-8 at byte {error.start}, expected UTF-8 text") from None
    try:
        loader = _BoundedLoader(text, file)
    except yaml.reader.ReaderError as error:
        line = 1 + len(_LINE_BREAK.findall(text[: error.position].encode()))
        raise _fatal_error(
            file, line, f"character U+{error.character:04X} is not allowed, expected printable text"
        ) from None
    expansion = NodeReader(file, environ)
    try:
        root = loader.get_single_node()
        if not isinstance(root, yaml.MappingNode):
            kind = "nothing" if root is None else "a list" if isinstance(root, yaml.SequenceNode) else "text"
            line = 1 if root is None else root.start_mark.line + 1
            raise _fatal_error(file, line, f"expected a mapping at the top level such as version: 1, got {kind}")
        value = expansion.mapping(root, ())
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark or loader.get_mark()
        raise _fatal_error(file, mark.line + 1, f"not valid YAML: {_describe_error(error)}") from None
    except (yaml.YAMLError, ValueError, OverflowError) as error:
        # PyYAML passes some of Python's own errors on: an escape beyond Unicode, a version of 5,000 digits.
        raise _fatal_error(file, loader.get_mark().line + 1, f"not valid YAML: {error}, expected YAML 1.1") from None
    faults, unreadable = tuple(expansion.faults), frozenset(expansion.unreadable)
    warnings = tuple(expansion.warnings)
    return YamlSource(file, value, expansion.marks, faults, expansion.substituted, unreadable, warnings)


def read_file(path: Path, expected: str) -> bytes:
    """Return the content, cut one byte past the bound. Raise `ConfigInvalid`, whose sentence ends with `expected`."""
    try:
        # Opening a pipe would block until somebody writes to it.
        if path.exists() and not path.is_file():
            problem = "not a file"
        else:
            with path.open("rb") as file:
                return file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        problem = "does not exist"
    except OSError as error:
        problem = f"cannot be read ({error.strerror})"
    raise ConfigInvalid([ConfigError(str(path), 1, (), f"{problem}, expected {expected}")])


def _fatal_error(file: str, line: int, message: str) -> ConfigInvalid:
    return ConfigInvalid([ConfigError(file, line, (), message)])


def _describe_error(error: yaml.MarkedYAMLError) -> str:
    """Return the parser's words in the usual order: the problem, then the expected form."""
    problem, context, begun = str(error.problem), str(error.context or ""), error.context_mark
    if context.startswith("expected"):
        return f"{context}, {problem}"
    if problem == "second occurrence":
        return f"{context.partition(';')[0]}, expected another name"
    if "'\\t'" in problem:
        return f"{problem}, expected spaces"
    if "expected" in problem:
        hint = next((hint for sign, hint in _HINTS.items() if sign in f"{problem} {context}"), "")
        return f"{problem} {context} begun on line {begun.line + 1}{hint}" if context and begun else problem
    return f"{problem}, expected YAML 1.1"


# The parser's words for a text that begins with a character which YAML reserves.
_HINTS = {
    "scanning an alias": '; put text that begins with * in quotes, e.g. "gpt-*"',
    "scanning an anchor": "; put text that begins with & in quotes",
    "got '{'": '; put text with braces in quotes, e.g. "${NAME}"',
}


class _BoundedLoader(yaml.SafeLoader):
    """Composes nodes within bounds on number and depth. An alias counts as all nodes of its anchor.

    PyYAML constructs no objects from them.
    """

    def __init__(self, text: str, file: str) -> None:
        super().__init__(text)
        self._file = file
        self._values = 0
        self._level = 0
        self._max_level = 0
        self._sizes: dict[yaml.Node, tuple[int, int]] = {}  # values and levels of each complete node

    def compose_node(self, parent: yaml.Node | None, index: Any) -> Any:
        line = self.peek_event().start_mark.line + 1  # type: ignore[no-untyped-call] # not in the stubs
        if self.check_event(yaml.AliasEvent):
            node: Any = super().compose_node(parent, index)
            if node not in self._sizes:
                line = node.start_mark.line + 1
                raise _fatal_error(self._file, line, "an anchor contains itself, expected an anchor without a cycle")
            self._add(line, *self._sizes[node])
            return node
        self._add(line, 1, 1)
        before, around = self._values - 1, self._max_level
        self._level += 1
        self._max_level = self._level
        node = super().compose_node(parent, index)
        self._sizes[node] = self._values - before, self._max_level - self._level + 1
        self._level -= 1
        self._max_level = max(around, self._max_level)
        return node

    def _add(self, line: int, values: int, levels: int) -> None:
        self._values += values
        if self._values > _MAX_VALUES:
            sentence = f"more than {_MAX_VALUES} values with all anchors expanded, expected fewer"
            raise _fatal_error(self._file, line, sentence)
        self._max_level = max(self._max_level, self._level + levels)
        if self._max_level > _MAX_DEPTH:
            raise _fatal_error(self._file, line, f"more than {_MAX_DEPTH} levels deep, expected fewer")
