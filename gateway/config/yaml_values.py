"""Turn YAML nodes into plain values: anchors, merge keys, `${VAR}` and scalars, and their faults."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import yaml

from gateway.config.errors import ConfigError, KeyPath, format_value

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_VARIABLE = re.compile(r"\$\$\{|\$\{([^}]*)\}")
_VARIABLE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_TAG = "tag:yaml.org,2002:"
_MAX_DIGITS = 64  # arithmetic on huge numbers, `1:0:0:0...` among them, takes more than linear time
_SCALARS: Mapping[str, str] = {
    "null": "null",
    "bool": "true or false",
    "int": "a whole number",
    "float": "a number",
    # No key takes a date, and a bare `=` or `<<` as a value means nothing special.
    **dict.fromkeys(("str", "timestamp", "value", "merge"), "text"),
}

_Entry = tuple[str, yaml.Node, yaml.Node]


class ScalarInvalid(ValueError):
    """A scalar that does not fit its tag or its form. The text is the whole sentence."""


def variable_value(environ: Mapping[str, str], name: str) -> tuple[str, bool]:
    """Return the value of a variable without white space at its end, and whether there was some.

    Files of secrets end with a newline, which no header can carry. Raise `ScalarInvalid`, without the value, which may
    be a secret, if it has another control character.
    """
    text = environ.get(name, "")
    value = text.rstrip()
    if (control := _CONTROL.search(value)) is not None:
        code = f"U+{ord(control[0]):04X}"
        raise ScalarInvalid(
            f"the environment variable {name} has the control character {code}, expected one line of text"
        )
    return value, value != text


def padded(name: str) -> str:
    """Return the warning about a variable with white space at its end."""
    return f"the environment variable {name} ends with white space, which is dropped"


class NodeReader:
    """Turns the nodes of one document into values, and records their places and faults.

    No anchor of the document may contain itself.
    """

    def __init__(self, file: str, environ: Mapping[str, str] | None) -> None:
        self.marks: dict[KeyPath, tuple[int, int]] = {(): (1, 1)}
        self.faults: list[ConfigError] = []
        self.warnings: list[ConfigError] = []
        self.substituted: dict[KeyPath, str] = {}  # the original text of values with `${VAR}`
        self.unreadable: set[KeyPath] = set()  # values that a fault has replaced
        self._file = file
        self._environ = environ

    def mapping(self, node: yaml.MappingNode, path: KeyPath) -> dict[str, Any]:
        """Return the mapping with its merged keys. Its own keys go first."""
        self._check_tag(node, path, "map")
        values: dict[str, Any] = {}
        for key, key_node, value_node in self._mapping_entries(node, path):
            self.marks[(*path, key)] = _place(key_node)
            values[key] = self._value(value_node, (*path, key))
        return values

    def _mapping_entries(self, node: yaml.MappingNode, path: KeyPath) -> Iterator[_Entry]:
        own: dict[str, _Entry] = {}
        merged: list[yaml.Node] = []
        for key_node, value_node in node.value:
            if isinstance(key_node, yaml.ScalarNode) and _is_tag(key_node, "merge"):
                merged.append(value_node)
            elif (key := self._key(key_node, path)) is None:
                continue
            elif key in own:
                first = own[key][1].start_mark.line + 1
                self._fault(key_node, (*path, key), f"duplicate key, expected only the one on line {first}")
            else:
                own[key] = (key, key_node, value_node)
        yield from own.values()
        seen = set(own)
        for source in merged:
            for entry in self._merged(source, path):
                if entry[0] not in seen:
                    seen.add(entry[0])
                    yield entry

    def _merged(self, node: yaml.Node, path: KeyPath) -> Iterator[_Entry]:
        """Yield the entries of `<<: node`. In a list of mappings, an earlier one wins."""
        if isinstance(node, yaml.MappingNode):
            yield from self._mapping_entries(node, path)
        elif isinstance(node, yaml.SequenceNode) and all(isinstance(i, yaml.MappingNode) for i in node.value):
            for item in node.value:
                yield from self._merged(item, path)
        else:
            self._fault(node, (*path, "<<"), "expected a mapping, or a list of mappings, to merge")

    def _key(self, node: yaml.Node, path: KeyPath) -> str | None:
        if not isinstance(node, yaml.ScalarNode):
            self._fault(node, (*path, "?"), "a mapping or a list cannot be a key, expected text")
            return None
        try:
            value = _construct_scalar(node.tag, node.value)
        except ScalarInvalid as invalid:
            self._fault(node, (*path, node.value), str(invalid))
            return None
        if isinstance(value, str):
            return value
        self._fault(node, (*path, node.value), f"YAML reads this key as {format_value(value)}, expected it in quotes")
        return None

    def _value(self, node: yaml.Node, path: KeyPath) -> Any:
        if isinstance(node, yaml.MappingNode):
            return self.mapping(node, path)
        if isinstance(node, yaml.ScalarNode):
            return self._scalar(node, path)
        self._check_tag(node, path, "seq")
        items = []
        for index, item in enumerate(node.value):
            self.marks[(*path, index)] = _place(item)
            items.append(self._value(item, (*path, index)))
        return items

    def _scalar(self, node: yaml.ScalarNode, path: KeyPath) -> Any:
        text = node.value
        try:
            if not _is_tag(node, "str") or "${" not in node.value:
                return _construct_scalar(node.tag, node.value)
            text = _VARIABLE.sub(partial(self._variable, node, path), node.value)
            self.substituted[path] = node.value
            # Without quotes a variable may hold a number; with them it stays text.
            return resolve_scalar(text) if node.style is None else _construct_scalar(node.tag, text)
        except ScalarInvalid as invalid:
            self.unreadable.add(path)
            # The sentence must not repeat the value of a variable: it may be a secret.
            self._fault(node, path, str(invalid).replace(format_value(text), format_value(node.value)))
            return node.value  # a placeholder, so that the key does not count as missing

    def _variable(self, node: yaml.Node, path: KeyPath, match: re.Match[str]) -> str:
        name = match[1]
        if name is None:
            return "${"
        if self._environ is None:
            raise ScalarInvalid("variables are replaced in config.yaml only, expected $${ for a plain ${")
        if not _VARIABLE_NAME.fullmatch(name):
            raise ScalarInvalid(f"expected the name of a variable between ${{ and }}, got {format_value(name)}")
        if name not in self._environ:
            raise ScalarInvalid(f"the environment variable {name} is not set, expected a value for it")
        value, was_padded = variable_value(self._environ, name)
        if was_padded:
            self.warnings.append(ConfigError(self._file, _place(node)[0], path, padded(name)))
        return value

    def _check_tag(self, node: yaml.Node, path: KeyPath, expected: str) -> None:
        if not _is_tag(node, expected):
            self._fault(node, path, f"the tag {format_value(_tag_name(node.tag))} is not supported, expected none")

    def _fault(self, node: yaml.Node, path: KeyPath, message: str) -> None:
        self.faults.append(ConfigError(self._file, _place(node)[0], path, message))


def _place(node: yaml.Node) -> tuple[int, int]:
    return node.start_mark.line + 1, node.start_mark.column + 1


def _is_tag(node: yaml.Node, name: str) -> bool:
    """Return whether the node has this tag of YAML itself, such as `map`."""
    return str(node.tag) == _TAG + name


def _tag_name(tag: str) -> str:
    """Return the tag in its short form: `!!set`."""
    return "!!" + tag.removeprefix(_TAG) if tag.startswith(_TAG) else tag


def resolve_scalar(text: str) -> Any:
    """Return a text as an unquoted scalar: `8` is a number, `off` false, `24h` text. Raise `ScalarInvalid`."""
    loader = yaml.SafeLoader("")
    tag = loader.resolve(yaml.ScalarNode, text, (True, False))  # type: ignore[no-untyped-call] # not in the stubs
    return _construct_scalar(tag, text)


def _construct_scalar(tag: str, text: str) -> Any:
    """Return the value of a scalar with a resolved tag. Raise `ScalarInvalid`."""
    kind = tag.removeprefix(_TAG)
    if kind not in _SCALARS:
        raise ScalarInvalid(f"the tag {format_value(_tag_name(tag))} is not supported, expected a plain value")
    if kind in ("int", "float") and len(text) > _MAX_DIGITS:
        raise ScalarInvalid(f"expected a number of at most {_MAX_DIGITS} characters, got {format_value(text)}")
    try:
        text.encode()
        return text if _SCALARS[kind] == "text" else yaml.SafeLoader("").construct_object(yaml.ScalarNode(tag, text))
    except UnicodeEncodeError:
        raise ScalarInvalid("half of a surrogate pair, expected whole Unicode characters") from None
    except (ValueError, KeyError, IndexError, OverflowError):  # `0b_`, `!!int x`, 5,000 digits
        raise ScalarInvalid(f"expected {_SCALARS[kind]}, got {format_value(text)}") from None
