"""JSON request bodies, strictly: what two parsers could read in two ways is refused."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import orjson

from gateway.errors import BadRequest


def parse_object(body: bytes) -> dict[str, Any]:
    """The JSON object in `body`.

    Refuses invalid UTF-8, NaN and Infinity, nesting beyond orjson's limit, other top-level types and duplicate
    keys. Raises `BadRequest` with the position.
    """
    return read_object(body)[0]


def read_object(body: bytes, *, canonical: bool = False) -> tuple[dict[str, Any], bytes]:
    """As `parse_object` -> (the object, the same as `orjson.dumps` writes it; `canonical`: with its keys sorted)."""
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise BadRequest(f"the body is not valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise BadRequest(f"the body is not a JSON object but {_name(value)}")
    try:
        # orjson writes 254 levels but reads 1024; what wraps the body later on needs some of them.
        dump_json = orjson.dumps([[value]], option=orjson.OPT_SORT_KEYS if canonical else None)
    except orjson.JSONEncodeError:
        raise BadRequest("the body is nested too deeply") from None
    if body.count(b":") != dump_json.count(
        b":"
    ):  # a quarter of the time of `":`, and keys may have a space behind them
        _refuse_duplicate_keys(body)
    return value, dump_json[2:-2]


def parse_numbers(body: bytes) -> dict[str, Any]:
    """As `parse_object`, and NaN, Infinity and -Infinity are numbers: protocols for tensors write them. JSON has no
    word for them, so this way, taken only where the strict one fails, costs 15 times as much."""
    try:
        return parse_object(body)
    except BadRequest:
        if b"NaN" not in body and b"Infinity" not in body:
            raise
        try:
            value = json.loads(body.decode(), object_pairs_hook=_pairs)
            orjson.dumps([[value]])  # it reads what cannot be written: lone surrogates, long integers, any depth
        except (ValueError, RecursionError, TypeError):  # what else is wrong with it is said by the strict parser
            raise BadRequest("the body is not valid JSON, with NaN and Infinity as numbers") from None
        if not isinstance(value, dict):
            raise BadRequest(f"the body is not a JSON object but {_name(value)}") from None
        return value


ABSENT = object()


def invalid_field(field: str, expected: str, found: object) -> BadRequest:
    """For the fields that the gateway itself relies on; the rest is the backend's to judge. `found`: what stands there,
    or `ABSENT`."""
    said = "missing" if found is ABSENT else _describe_value(found)
    return BadRequest(f"'{field}' is {said}: expected {expected}", param=field)


def check_count(body: Mapping[str, Any], field: str, minimum: int = 1) -> None:
    """Raises `BadRequest` where it is there and no integer, or one below `minimum`."""
    value = body.get(field)
    if value is not None and not (type(value) is int and value >= minimum):
        raise invalid_field(field, f"an integer of at least {minimum}", value)


def check_temperature(body: Mapping[str, Any]) -> None:
    """Raises `BadRequest` where it is there and no number from 0 to 2."""
    value = body.get("temperature")
    if value is not None and not (type(value) in (int, float) and 0 <= value <= 2):
        raise invalid_field("temperature", "a number from 0 to 2", value)


def dump_json(value: Any, *, canonical: bool = False) -> bytes:
    """As JSON, with NaN and the infinities where there are any. `canonical`: the same bytes for equal values, whatever
    the order of their keys."""
    plain = orjson.dumps(value, option=orjson.OPT_SORT_KEYS if canonical else None)
    # orjson writes null for what JSON has no word for: only then is it worth looking.
    if b"null" in plain and _has_non_finite(value):
        return json.dumps(value, sort_keys=canonical, separators=(",", ":"), ensure_ascii=False).encode()
    return plain


def _has_non_finite(value: Any) -> bool:
    if isinstance(value, float):
        return not math.isfinite(value)
    if isinstance(value, dict | list):
        return any(map(_has_non_finite, value.values() if isinstance(value, dict) else value))
    return False


def _refuse_duplicate_keys(body: bytes) -> None:
    """The exact check, 15 times slower than orjson: made only where the number of keys looks wrong.

    A key that hides from the count is harmless: the backend is sent what was parsed here, not the raw body.
    """

    try:
        json.loads(body, object_pairs_hook=_pairs)
    except RecursionError:
        raise BadRequest("the body is nested too deeply") from None


def _pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
    seen = dict(items)
    if len(seen) != len(items):
        names = [key for key, _ in items]
        twice = next(key for key in names if names.count(key) > 1)
        raise BadRequest(f"the key {twice[:100]!r} stands twice in one object", param=twice[:100])
    return seen


def _name(value: object) -> str:
    names = {list: "an array", str: "a string", bool: "a boolean", int: "a number", float: "a number"}
    return names.get(type(value), "null")


def _describe_value(value: object) -> str:
    """What texts say stays out of errors."""
    if isinstance(value, str):
        return "a string" if value else "an empty string"
    if isinstance(value, list):
        return f"an array of {len(value)}" if value else "an empty array"
    return "an object" if isinstance(value, dict) else orjson.dumps(value).decode()[:40]
