"""Descriptions and defaults of settings, for the JSON Schema and for docs/configuration.md.

A description is the string below a field of a `Section`. This module reads it from the source on demand.
Option `use_attribute_docstrings` of pydantic would do so at import, which adds some 100 ms to every start.
"""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from itertools import pairwise
from pathlib import Path

from pydantic.fields import FieldInfo

from gateway.config.schema_types import FileForm
from gateway.config.validation import Section


def describe(section: type[Section]) -> Mapping[str, str]:
    """Return the description of each key of a section, in the order of the keys.

    A key without a description has that of the section `described_in`. If the source is not installed, the
    result is empty.
    """
    descriptions = {} if section.described_in is None else dict(describe(section.described_in))
    for each in reversed(section.__mro__):
        descriptions |= _module_strings(each.__module__).get(each.__name__, {})
    descriptions |= {extension.key: extension.summary for extension in section.further_keys()}
    return {key: descriptions[key] for key in section.listed_keys() if key in descriptions}


def file_default(field: FieldInfo) -> object:
    """Return the default of a field as a file writes it: `30s`, `10MiB`, `on`, a number or a list.

    Return None if the key is required, is a section, or has no value unless it is set.
    """
    if field.is_required() or field.default_factory is not None:
        return None
    default = field.default
    for form in field.metadata:
        if isinstance(form, FileForm):
            return form.text(default)
    if isinstance(default, tuple | Mapping):
        return list(default) or None
    return str(default) if isinstance(default, Path) else default


@cache
def _module_strings(module: str) -> Mapping[str, Mapping[str, str]]:
    """Return the strings below the fields of each class of a module."""
    try:
        tree = ast.parse(inspect.getsource(sys.modules[module]))
    except (OSError, TypeError):  # only compiled files are there, or a built-in module
        return {}
    return {node.name: dict(_class_strings(node)) for node in tree.body if isinstance(node, ast.ClassDef)}


def _class_strings(node: ast.ClassDef) -> Iterator[tuple[str, str]]:
    for field, below in pairwise(node.body):
        match field, below:
            case ast.AnnAssign(target=ast.Name(id=key)), ast.Expr(value=ast.Constant(value=str(text))):
                yield key, " ".join(text.split())
