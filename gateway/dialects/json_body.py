"""Parse JSON request bodies strictly: bodies that two parsers could read differently are refused."""

from __future__ import annotations

import codecs
import json
import math
import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any

import orjson

from gateway.config.schema import MAX_BODY_KEYS
from gateway.errors import BadRequest, PayloadTooLarge, UnsupportedByBackend


def check_keys(body: bytes, limit: int = MAX_BODY_KEYS) -> None:
    """Raise `PayloadTooLarge` if a JSON body may have more than `limit` keys, before anything parses it.

    The parser keeps the interpreter's lock, so that even in another thread a body of 100,000 keys holds everybody up.
    Each key has a colon and a quotation mark before it, so counting these is an upper bound, and takes microseconds.
    """
    if len(body) <= limit * len('"":0'):
        return
    most = min(body.count(b":"), body.count(b'"') - body.count(b'\\"'))
    if most > limit:
        raise PayloadTooLarge(f"the JSON body has about {most} keys: expected at most {limit} (server.max_body_keys)")


def parse_object(body: bytes) -> dict[str, Any]:
    """Return the JSON object in `body`.

    Invalid UTF-8, NaN and Infinity, nesting beyond orjson's limit, other top-level types and duplicate keys are
    refused. Raise `BadRequest` with the position.
    """
    return read_object(body)[0]


BOM = b"\xef\xbb\xbf"  # a byte order mark: clients on .NET write one, and a reader may ignore it (RFC 8259 section 8.1)


def read_object(body: bytes, *, canonical: bool = False) -> tuple[dict[str, Any], bytes]:
    """Parse as `parse_object` does. Return the object, and its bytes as orjson writes them: with sorted keys if they
    are `canonical`."""
    body = body.removeprefix(BOM)
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise BadRequest(f"the body is not valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise BadRequest(f"the body is {_name(value)}: expected a JSON object")
    if _may_have_long_integers(body):
        value = _with_long_integers(body, value)
    try:
        # orjson writes 254 levels but reads 1024. The code that wraps the body later needs some of them.
        dump_json = orjson.dumps([[value]], option=orjson.OPT_SORT_KEYS if canonical else None)
    except orjson.JSONEncodeError:
        raise BadRequest("the body is nested too deeply") from None
    # Counting `:` takes a quarter of the time of counting `":`, and a key may be followed by a space.
    if body.count(b":") != dump_json.count(b":"):
        _refuse_duplicate_keys(body)
    return value, dump_json[2:-2]


def parse_numbers(body: bytes) -> dict[str, Any]:
    """Parse as `parse_object` does, but accept NaN, Infinity and -Infinity, which tensor protocols use.

    JSON has no such numbers, so this slower way is taken only if the strict one fails. It takes 15 times as long.
    """
    try:
        return parse_object(body)
    except BadRequest:
        if b"NaN" not in body and b"Infinity" not in body:
            raise
        try:
            value = json.loads(body.removeprefix(BOM).decode(), object_pairs_hook=_pairs)
            # json reads values that cannot be written: lone surrogates, long integers, any depth
            orjson.dumps([[value]])
        except (ValueError, RecursionError, TypeError):  # the strict parser reports other errors
            raise BadRequest("the body is not valid JSON (NaN and Infinity are allowed as numbers)") from None
        if not isinstance(value, dict):
            raise BadRequest(f"the body is {_name(value)}: expected a JSON object") from None
        return value


# orjson reads an integer beyond 64 bits as the nearest double: 1000000000000000000001 would go on as 1e+21, and would
# share an entry with its neighbours. Such integers are kept as they are written. Floats are kept by their value.
_AS_ZEROS, _LONG = bytes.maketrans(b"123456789", b"0" * 9), b"0" * 19  # 2**63 has 19 digits


def _may_have_long_integers(data: bytes) -> bool:
    return _LONG in data.translate(_AS_ZEROS)


def _with_long_integers(data: bytes | str, value: Any) -> Any:
    """Return `value`, which was parsed from `data`, with integers beyond 64 bits as fragments of JSON."""
    try:
        return json.loads(data, parse_int=_exact_integer)
    except (ValueError, RecursionError):  # nested deeper than `json` can read
        return value


def _exact_integer(digits: str) -> int | orjson.Fragment:
    if len(digits) > 20:
        return orjson.Fragment(digits)
    number = int(digits)
    return number if -(2**63) <= number < 2**64 else orjson.Fragment(digits)


# No call has as many tokens. A larger number is an error of its backend, which would spoil the sums for months.
MAX_TOKENS = 10**9
_DIGITS = re.compile(r"[0-9]{1,10}(?:\.0+)?", re.ASCII)  # of a number that a backend writes as a text


def read_count(value: Any) -> int | None:
    """Return a number of tokens that a backend reports, also as a float or a text. Return None if the value is none: it
    is negative, beyond `MAX_TOKENS`, not finite, or something else."""
    if isinstance(value, str) and _DIGITS.fullmatch(value.strip()):
        value = float(value)
    if type(value) not in (int, float) or not 0 <= value <= MAX_TOKENS:
        return None
    return int(value)


def count_of(value: Any) -> int:
    """Return a number of tokens that a backend reports, or 0 if the value is none."""
    if type(value) is int and 0 <= value <= MAX_TOKENS:  # as nearly all are
        return value
    return read_count(value) or 0


def _as_integer(fragment: object) -> int:
    """Return the integer of a fragment, for `json`, which does not know fragments."""
    if not isinstance(fragment, orjson.Fragment):
        raise TypeError(f"{type(fragment).__name__} is not JSON")
    return int(orjson.dumps(fragment))


# What common servers write although JSON has it not: numbers that are not finite, and halves of surrogate pairs.
_LENIENT = (b"NaN", b"Infinity", b"\\ud", b"\\uD")


def load_json(data: bytes | str) -> Any:
    """Parse what a backend wrote, also with a byte order mark, NaN, infinities and lone surrogates. Integers beyond 64
    bits keep their digits. Raise `orjson.JSONDecodeError`.

    The slower way is taken only if the strict one fails, or would change a number.
    """
    try:
        value = orjson.loads(data)
        if len(data) < len(_LONG):
            return value
        raw = data if isinstance(data, bytes) else data.encode("utf-8", "surrogatepass")
        return _with_long_integers(data, value) if _may_have_long_integers(raw) else value
    except orjson.JSONDecodeError:
        if isinstance(data, bytes) and data.startswith(codecs.BOM_UTF8):  # RFC 8259, section 8.1: it may be ignored
            return load_json(data[len(codecs.BOM_UTF8) :])
        if is_lenient(data if isinstance(data, bytes) else data.encode("utf-8", "surrogatepass")):
            with suppress(ValueError, RecursionError):
                return json.loads(data)
        raise


def well_formed(text: str) -> str:
    """Return a text of `load_json` as Unicode: halves that make a pair are joined, others become U+FFFD."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def is_lenient(data: bytes) -> bool:
    """Return whether `data` may need `load_json` and `dump_json` in place of orjson."""
    return any(mark in data for mark in _LENIENT)


def json_writer(payload: Iterable[bytes]) -> Callable[[Any], bytes]:
    """Return the function that writes values which `load_json` has read from `payload`. It is orjson's if that can
    write them."""
    return dump_json if any(map(is_lenient, payload)) else orjson.dumps


def is_json(data: bytes | str) -> bool:
    try:
        load_json(data)
    except orjson.JSONDecodeError:
        return False
    return True


ABSENT = object()


def invalid_field(field: str, expected: str, value: object) -> BadRequest:
    """Return the error for an invalid field. `found` is its value, or `ABSENT`.

    It is for fields that the gateway itself relies on; the backend judges the rest.
    """
    description = "missing" if value is ABSENT else _describe_value(value)
    return BadRequest(f"'{field}' is {description}: expected {expected}", param=field)


def check_model(body: Mapping[str, Any]) -> None:
    """Raise `BadRequest` if the model is not a string, or empty. It may be absent where the backend sets one."""
    model = body.get("model")
    if model is not None and (not isinstance(model, str) or not model):
        raise invalid_field("model", "a non-empty string", model)


def sent_model(backend_model: str | None, body: Mapping[str, Any]) -> str:
    """Return the model for the backend: its own, or the one that the body names.

    Raise `UnsupportedByBackend` if there is neither, since another backend may set one.
    """
    if backend_model is None and not body.get("model"):
        missing = invalid_field("model", "a non-empty string", body.get("model", ABSENT))
        raise UnsupportedByBackend(missing.message, param="model")
    return backend_model or str(body["model"])


def check_count(body: Mapping[str, Any], field: str) -> None:
    """Raise `BadRequest` if the field is present and not an integer of at least 1."""
    value = body.get(field)
    if value is not None and not (type(value) is int and value >= 1):
        raise invalid_field(field, "an integer of at least 1", value)


def check_limit(body: Mapping[str, Any], field: str) -> None:
    """Raise `BadRequest` if the field is present and not a whole number. Servers differ in what they take -1 and 0 for,
    and some libraries write 16.0."""
    value = body.get(field)
    if not (value is None or type(value) is int or (type(value) is float and value.is_integer())):
        raise invalid_field(field, "an integer", value)


def limit_of(*values: Any) -> int | None:
    """Return the first of these values that limits anything, or None if none does. They were checked with
    `check_limit`."""
    return next((int(value) for value in values if value is not None and value > 0), None)


def check_temperature(body: Mapping[str, Any]) -> None:
    """Raise `BadRequest` if the temperature is present and not a number. Its range depends on the server."""
    value = body.get("temperature")
    if value is not None and type(value) not in (int, float):
        raise invalid_field("temperature", "a number", value)


def dump_json(value: Any, *, canonical: bool = False) -> bytes:
    """Return the value as JSON, with NaN, infinities and lone surrogates if any. If it is `canonical`, equal values
    give the same bytes."""
    try:
        plain = orjson.dumps(value, option=orjson.OPT_SORT_KEYS if canonical else None)
    except orjson.JSONEncodeError as error:
        try:
            # Halves of a pair that two events had are a pair again: both are written as escapes, side by side.
            return json.dumps(value, sort_keys=canonical, separators=(",", ":"), default=_as_integer).encode()
        except RecursionError:
            raise error from None
    # orjson writes null for numbers that JSON does not have, so look only if there is a null.
    if b"null" in plain and _has_non_finite(value):
        text = json.dumps(value, sort_keys=canonical, separators=(",", ":"), ensure_ascii=False, default=_as_integer)
        return text.encode()
    return plain


def dump_strict(value: Any) -> bytes:
    """Return the value as JSON that each parser reads: halves of surrogate pairs become U+FFFD. Raise
    `orjson.JSONEncodeError` if it is nested too deeply even for that."""
    try:
        return orjson.dumps(value)
    except orjson.JSONEncodeError as error:
        try:
            return well_formed(json.dumps(value, separators=(",", ":"), ensure_ascii=False)).encode()
        except RecursionError:
            raise error from None


# What many libraries take for line ends, as Python's `splitlines` does. A stream's line ends are CR and LF alone.
_LINE_ENDS = ((b"\xe2\x80\xa8", b"\\u2028"), (b"\xe2\x80\xa9", b"\\u2029"), (b"\xc2\x85", b"\\u0085"))


def escape_line_ends(data: bytes) -> bytes:
    """Return JSON with U+0085, U+2028 and U+2029 as escapes, for an event that the gateway writes."""
    if not data.isascii():
        for raw, escape in _LINE_ENDS:
            data = data.replace(raw, escape)
    return data


def _has_non_finite(value: Any) -> bool:
    if isinstance(value, float):
        return not math.isfinite(value)
    if isinstance(value, dict | list):
        return any(map(_has_non_finite, value.values() if isinstance(value, dict) else value))
    return False


def _refuse_duplicate_keys(body: bytes) -> None:
    """Refuse duplicate keys. The exact check is 15 times slower than orjson, so callers first compare a count.

    A duplicate that the count misses does no harm: the backend gets the parsed body, not the raw one.
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
        raise BadRequest(f"the key {twice[:100]!r} occurs twice in one object: expected it once", param=twice[:100])
    return seen


def _name(value: object) -> str:
    names = {list: "an array", str: "a string", bool: "a boolean", int: "a number", float: "a number"}
    return names.get(type(value), "null")


def _describe_value(value: object) -> str:
    """Describe a value without quoting texts, which must stay out of errors."""
    if isinstance(value, str):
        return "a string" if value else "an empty string"
    if isinstance(value, list):
        return f"an array of {len(value)}" if value else "an empty array"
    return "an object" if isinstance(value, dict) else orjson.dumps(value).decode()[:40]
