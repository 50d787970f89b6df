"""Write the tables of docs/configuration.md from the models that read the files: `python -m docs.tools.tables`.

A table stands between `<!-- table: NAME -->` and `<!-- end -->`. Each row has a key, its default and its description,
which is the string below the field in `gateway/config`.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, get_args, get_origin

from pydantic.fields import FieldInfo

from docs.tools.page_parts import with_part
from gateway.config import Config, OpenAIBackendConfig
from gateway.config.descriptions import describe, file_default
from gateway.config.policy.limits import LimitRule
from gateway.config.policy.schema import CacheRule, MatchRule, PolicyFile, RouteRule, TargetRule
from gateway.config.policy.tests import ExpectationRule
from gateway.config.validation import Section
from gateway.features.guard.rule import GuardRule
from gateway.features.onnx_backend.settings import OnnxBackendConfig
from gateway.features.prompt_traces.rule import TraceRule
from gateway.features.recorder.rule import RecordRule
from gateway.features.triton.settings import TritonBackendConfig

PAGE = Path(__file__).parents[1] / "configuration.md"
_NAME = re.compile(r"<!-- table: (\w+) -->")


class Table(NamedTuple):
    """The keys of one or several sections. A key that two sections share has one row."""

    sections: tuple[type[Section], ...]
    prefix: str = ""  # what stands before each key
    nested: bool = True  # whether the keys of sections within have rows


class Row(NamedTuple):
    """One key."""

    key: str
    default: str
    meaning: str


TABLES: Mapping[str, Table] = {
    "config": Table((Config,), nested=False),
    **{
        name: Table((field.annotation,), f"{name}.")
        for name, field in Config.model_fields.items()
        if isinstance(field.annotation, type) and issubclass(field.annotation, Section)
    },
    "backends": Table((OpenAIBackendConfig, TritonBackendConfig)),
    "onnx": Table((OnnxBackendConfig,)),
    "policy": Table((PolicyFile,), nested=False),
    "routes": Table((RouteRule,), "routes[].", nested=False),
    "match": Table((MatchRule,), "routes[].match."),
    "cache": Table((CacheRule,), "routes[].cache."),
    "route": Table((TargetRule,), "routes[].route."),
    "limits": Table((LimitRule,), "routes[].limits[]."),
    "record": Table((RecordRule,), "routes[].record."),
    "guard": Table((GuardRule,), "routes[].guard."),
    "trace": Table((TraceRule,), "routes[].trace."),
    "tests": Table((ExpectationRule,), "tests[]."),
}


_ANCHORS = {"tests": "expectations"}  # the other tables stand under a heading of their own name


def rows(table: Table) -> Iterator[Row]:
    """Yield the rows of a table, each key once."""
    seen: set[str] = set()
    for section in table.sections:
        for row in _section_rows(section, table.prefix, table.nested, [section]):
            if row.key not in seen:
                seen.add(row.key)
                yield row


def _section_rows(section: type[Section], prefix: str, nested: bool, described: list[type[Section]]) -> Iterator[Row]:
    """Yield the rows of a section. `described` has the sections whose keys the table already has."""
    meanings = describe(section)
    fields = {**section.model_fields, **{each.key: each.field for each in section.further_keys()}}
    for key in section.listed_keys():
        field = fields[key]
        inner = [each for each in _sections_in(field.annotation) if nested]
        if not inner or field.default_factory is None:
            yield Row(prefix + key, _default(field), meanings[key])
        for each in inner:
            if not any(issubclass(other, each) for other in described):
                described.append(each)
                many = "[]" if _is_list(field.annotation) else ""
                yield from _section_rows(each, f"{prefix}{key}{many}.", nested, described)


def _sections_in(annotation: Any) -> Iterator[type[Section]]:
    if isinstance(annotation, type) and issubclass(annotation, Section):
        yield annotation
    for part in get_args(annotation):
        yield from _sections_in(part)


def _is_list(annotation: Any) -> bool:
    return get_origin(annotation) is tuple or any(_is_list(part) for part in get_args(annotation))


def _default(field: FieldInfo) -> str:
    """Return a cell: `required`, the default as a file writes it, `none`, or `section`."""
    if field.is_required():
        return "required"
    default = file_default(field)
    if default is None:
        return "section" if any(_sections_in(field.annotation)) and field.default_factory is not None else "none"
    if isinstance(default, bool):
        return f"`{str(default).lower()}`"
    if isinstance(default, float):
        return f"`{default:g}`"
    return f"`[{', '.join(map(str, default))}]`" if isinstance(default, list) else f"`{default}`"


def markdown(table: Table) -> str:
    """Return a table as Markdown."""
    lines = ["| key | default | meaning |", "|---|---|---|"]
    for row in rows(table):
        meaning = row.meaning.replace("|", r"\|")
        last = row.key.rpartition(".")[2]
        key = f"[`{row.key}`](#{_ANCHORS.get(last, last)})" if last in TABLES and not table.nested else f"`{row.key}`"
        lines.append(f"| {key} | {row.default} | {meaning} |")
    return "\n".join(lines) + "\n"


def with_tables(page: str) -> str:
    """Return a page with its tables written again. Raise `ValueError` if it does not have each table once."""
    names = _NAME.findall(page)
    if sorted(names) != sorted(TABLES):
        raise ValueError(f"the page has the tables {sorted(names)}, expected {sorted(TABLES)}")
    for name, table in TABLES.items():
        page = with_part(page, f"table: {name}", markdown(table))
    return page


def main() -> int:
    PAGE.write_text(with_tables(PAGE.read_text()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
