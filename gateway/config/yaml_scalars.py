"""YAML scalars as plain values: null, booleans, numbers and text, and nothing else."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import yaml

from gateway.config.errors import show

_TAG = "tag:yaml.org,2002:"
_MAX_DIGITS = 64  # arithmetic on huge numbers, `1:0:0:0...` among them, takes more than linear time


class ScalarInvalid(ValueError):
    """A scalar that is not what its tag or its looks say; the text is the whole sentence."""


def is_tag(node: yaml.Node, name: str) -> bool:
    """Whether the node has this tag of YAML's own, such as `map`."""
    return str(node.tag) == _TAG + name


def tag_name(tag: str) -> str:
    """The tag as it is written: `!!set`."""
    return "!!" + tag.removeprefix(_TAG) if tag.startswith(_TAG) else tag


def resolve_scalar(text: str) -> Any:
    """A text as an unquoted scalar: `8` is a number, `off` false, `24h` text. Raises `ScalarInvalid`."""
    loader = yaml.SafeLoader("")
    tag = loader.resolve(yaml.ScalarNode, text, (True, False))  # type: ignore[no-untyped-call] # not in the stubs
    return construct_scalar(tag, text)


def construct_scalar(tag: str, text: str) -> Any:
    """The value of a scalar that the parser has given a tag. Raises `ScalarInvalid`."""
    kind = tag.removeprefix(_TAG)
    if kind not in _CONSTRUCT:
        raise ScalarInvalid(f"the tag {show(tag_name(tag))} is not supported, expected a plain value")
    expected, construct = _CONSTRUCT[kind]
    if kind in ("int", "float") and len(text) > _MAX_DIGITS:
        raise ScalarInvalid(f"expected a number of at most {_MAX_DIGITS} characters, got {show(text)}")
    try:
        text.encode()
        return construct(yaml.SafeLoader(""), yaml.ScalarNode(tag, text))
    except UnicodeEncodeError:
        raise ScalarInvalid("half of a surrogate pair, expected whole Unicode characters") from None
    except (ValueError, KeyError, IndexError, OverflowError):  # `0b_`, `!!int x`, 5,000 digits
        raise ScalarInvalid(f"expected {expected}, got {show(text)}") from None


def _text(_: yaml.SafeLoader, node: yaml.ScalarNode) -> str:
    return str(node.value)


_CONSTRUCT: Mapping[str, tuple[str, Callable[[yaml.SafeLoader, yaml.ScalarNode], Any]]] = {
    "null": ("null", lambda _, __: None),
    "bool": ("true or false", lambda loader, node: loader.construct_yaml_bool(node)),
    "int": ("a whole number", lambda loader, node: loader.construct_yaml_int(node)),
    "float": ("a number", lambda loader, node: loader.construct_yaml_float(node)),
    "str": ("text", _text),
    # No key takes a date, and a bare `=` or `<<` as a value means nothing special.
    "timestamp": ("text", _text),
    "value": ("text", _text),
    "merge": ("text", _text),
}
