"""From YAML nodes to plain values: anchors, merge keys, `${VAR}`, and what is not allowed of them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import yaml

from gateway.config.errors import KeyPath, show
from gateway.config.yaml_scalars import ScalarInvalid, construct_scalar, is_tag, resolve_scalar, tag_name

MAX_NODES = 20_000  # values of one file with every anchor written out: a bomb of nine lines has billions
MAX_DEPTH = 32

_VARIABLE = re.compile(r"\$\$\{|\$\{([^}]*)\}")
_VARIABLE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)

_Entry = tuple[str, yaml.Node, yaml.Node]


class BoundExceeded(Exception):
    """More than one file may hold."""

    def __init__(self, line: int, sentence: str) -> None:
        super().__init__(sentence)
        self.line = line
        self.sentence = sentence


class Expansion:
    """Turns the nodes of one document into values, noting where each is and what is wrong with it."""

    def __init__(self, environ: Mapping[str, str] | None) -> None:
        self.marks: dict[KeyPath, tuple[int, int]] = {(): (1, 1)}
        self.faults: list[tuple[int, KeyPath, str]] = []
        self.substituted: dict[KeyPath, str] = {}  # the text as written where `${VAR}` was replaced
        self.unreadable: set[KeyPath] = set()  # where a fault left only a stand-in
        self._environ = environ
        self._count = 0
        self._open: list[yaml.Node] = []  # from the top down to the node at hand

    def mapping(self, node: yaml.MappingNode, path: KeyPath) -> dict[str, Any]:
        """The mapping with its merges; a key of its own goes before a merged one."""
        self._enter(node)
        self._check_tag(node, path, "map")
        found: dict[str, Any] = {}
        for key, key_node, value_node in self._entries(node, path):
            self.marks[(*path, key)] = _place(key_node)
            found[key] = self._value(value_node, (*path, key))
        self._open.pop()
        return found

    def _entries(self, node: yaml.MappingNode, path: KeyPath) -> Iterator[_Entry]:
        own: dict[str, _Entry] = {}
        merged: list[yaml.Node] = []
        for key_node, value_node in node.value:
            if isinstance(key_node, yaml.ScalarNode) and is_tag(key_node, "merge"):
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
        """The entries that `<<: node` brings; of a list of mappings, an earlier one goes first."""
        self._enter(node)
        if isinstance(node, yaml.MappingNode):
            yield from self._entries(node, path)
        elif isinstance(node, yaml.SequenceNode) and all(isinstance(i, yaml.MappingNode) for i in node.value):
            for item in node.value:
                yield from self._merged(item, path)
        else:
            self._fault(node, (*path, "<<"), "expected a mapping, or a list of mappings, to merge")
        self._open.pop()

    def _key(self, node: yaml.Node, path: KeyPath) -> str | None:
        self._enter(node)
        self._open.pop()
        if not isinstance(node, yaml.ScalarNode):
            self._fault(node, (*path, "?"), "a mapping or a list cannot be a key, expected text")
            return None
        try:
            value = construct_scalar(node.tag, node.value)
        except ScalarInvalid as invalid:
            self._fault(node, (*path, node.value), str(invalid))
            return None
        if isinstance(value, str):
            return value
        self._fault(node, (*path, node.value), f"YAML reads this key as {show(value)}, expected it in quotes")
        return None

    def _value(self, node: yaml.Node, path: KeyPath) -> Any:
        if isinstance(node, yaml.MappingNode):
            return self.mapping(node, path)
        self._enter(node)
        value: Any = None
        if isinstance(node, yaml.ScalarNode):
            value = self._scalar(node, path)
        elif isinstance(node, yaml.SequenceNode):
            self._check_tag(node, path, "seq")
            value = []
            for index, item in enumerate(node.value):
                self.marks[(*path, index)] = _place(item)
                value.append(self._value(item, (*path, index)))
        self._open.pop()
        return value

    def _scalar(self, node: yaml.ScalarNode, path: KeyPath) -> Any:
        text = node.value
        try:
            if not is_tag(node, "str") or "${" not in node.value:
                return construct_scalar(node.tag, node.value)
            text = _VARIABLE.sub(self._variable, node.value)
            self.substituted[path] = node.value
            # Without quotes a variable may hold a number; with them it stays text.
            return resolve_scalar(text) if node.style is None else construct_scalar(node.tag, text)
        except ScalarInvalid as invalid:
            self.unreadable.add(path)
            # What came out of a variable is not repeated: it may be a secret.
            self._fault(node, path, str(invalid).replace(show(text), show(node.value)))
            return node.value  # a stand-in: the key is given, so nobody is to miss it

    def _variable(self, match: re.Match[str]) -> str:
        name = match[1]
        if name is None:
            return "${"
        if self._environ is None:
            raise ScalarInvalid("variables are replaced in config.yaml only, expected $${ for a plain ${")
        if not _VARIABLE_NAME.fullmatch(name):
            raise ScalarInvalid(f"expected the name of a variable between ${{ and }}, got {show(name)}")
        if name not in self._environ:
            raise ScalarInvalid(f"the environment variable {name} is not set, expected a value for it")
        return self._environ[name]

    def _check_tag(self, node: yaml.Node, path: KeyPath, expected: str) -> None:
        if not is_tag(node, expected):
            self._fault(node, path, f"the tag {show(tag_name(node.tag))} is not supported, expected none")

    def _enter(self, node: yaml.Node) -> None:
        line = node.start_mark.line + 1
        self._count += 1
        if self._count > MAX_NODES:
            raise BoundExceeded(line, f"more than {MAX_NODES} values with all anchors expanded, expected fewer")
        if any(node is ancestor for ancestor in self._open):
            raise BoundExceeded(line, "an anchor that contains itself, expected one that ends")
        if len(self._open) >= MAX_DEPTH:
            raise BoundExceeded(line, f"more than {MAX_DEPTH} levels deep, expected fewer")
        self._open.append(node)

    def _fault(self, node: yaml.Node, path: KeyPath, message: str) -> None:
        self.faults.append((node.start_mark.line + 1, path, message))


def _place(node: yaml.Node) -> tuple[int, int]:
    return node.start_mark.line + 1, node.start_mark.column + 1
