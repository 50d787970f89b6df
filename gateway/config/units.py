"""Durations, shares, sizes and addresses as they are written in configuration files.

Each `parse_*` is pure and raises `ValueError` with the whole sentence; each type is what a pydantic field is
annotated with.
"""

from __future__ import annotations

import re
from typing import Annotated, NamedTuple

from pydantic import BeforeValidator, ByteSize, PlainValidator, WithJsonSchema

from gateway.config.errors import format_value
from gateway.config.schema_types import OFF, SWITCH, ScalarForm, any_of

_DURATION = ScalarForm(r"(\d{1,12}(?:\.\d{1,9})?)(ms|s|m|h|d)", "a duration such as 250ms, 30s, 5m, 24h or 7d")
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_MAX_DURATION_S = 3650 * 86400.0  # sums with wall clocks stay exact, and nobody means more than ten years

_SHARE = re.compile(r"(\d{1,3}(?:\.\d{1,9})?)%", re.ASCII)
_PERCENT = ScalarForm(r"(100(\.0{1,9})?|0?\d{1,2}(\.\d{1,9})?)%", "a share such as 1%")  # in [0, 1], for editors

_SIZE = ScalarForm(r"(\d{1,15})(B|kB|KB|MB|GB|TB|KiB|MiB|GiB|TiB)", "a size such as 64MiB, 1GB or a number of bytes")
_MAX_BYTES = 2**50

_RATE = ScalarForm(r"(\d{1,6}(?:\.\d{1,6})?)/s", "a rate such as 50/s")

_ADDRESS = ScalarForm(
    r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9_.-]+):(\d{1,5})", "HOST:PORT such as 127.0.0.1:8080 or [::1]:8080"
)


class Address(NamedTuple):
    """Where to listen. Port 0 lets the system choose."""

    host: str  # without the brackets of an IPv6 address
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def loopback(self) -> bool:
        """Only this machine reaches it."""
        return self.host in ("localhost", "::1") or re.fullmatch(r"127(\.\d+){3}", self.host) is not None


def parse_duration(value: object) -> float:
    """Seconds in [0, 10 years]. A number without a unit is refused, as nobody can tell which was meant; 0 is 0."""
    if value == 0 and not isinstance(value, bool):
        return 0.0
    match = _DURATION.read(value)
    seconds = float(match[1]) * _SECONDS[match[2]]
    if seconds > _MAX_DURATION_S:
        raise ValueError(f"expected a duration of at most 3650d, got {format_value(value)}")
    return seconds


def parse_positive_duration(value: object) -> float:
    """Seconds in (0, 10 years]."""
    seconds = parse_duration(value)
    if seconds <= 0:
        raise ValueError(f"expected a duration longer than 0s, got {format_value(value)}")
    return seconds


def parse_duration_or_off(value: object) -> float | None:
    """Seconds in (0, 10 years]; None: off. YAML 1.1 reads a bare `off` as false; in quotes it stays text."""
    if value is None or value is False or value == "off":
        return None
    try:
        return parse_positive_duration(value)
    except ValueError:
        raise ValueError(f"expected off or a duration such as 5m, got {format_value(value)}") from None


def parse_share(value: object) -> float:
    """A part of a whole, in [0, 1]. The bare number 1 is refused: it reads as 1% and as everything."""
    if isinstance(value, str) and (match := _SHARE.fullmatch(value)):
        share = float(match[1]) / 100
    elif isinstance(value, float) or (isinstance(value, int) and not isinstance(value, bool) and value == 0):
        share = float(value)
    else:
        doubt = ", which may mean 1% or all" if value == 1 and not isinstance(value, bool) else ""
        raise ValueError(f"expected a share such as 1% or 0.01, got {format_value(value)}{doubt}")
    if not 0 <= share <= 1:
        raise ValueError(f"expected a share between 0% and 100%, got {format_value(value)}")
    return share


def parse_positive_share(value: object) -> float:
    """A part of a whole, in (0, 1]."""
    share = parse_share(value)
    if share <= 0:
        raise ValueError(f"expected a share above 0% and up to 100%, got {format_value(value)}")
    return share


def parse_size(value: object) -> int:
    """Bytes in [1, 1 PiB]: a whole number, or one with a unit."""
    if isinstance(value, int) and not isinstance(value, bool):
        size = value
    else:
        match = _SIZE.read(value)
        size = int(match[1]) * int(ByteSize.byte_sizes[match[2].lower()])
    if not 1 <= size <= _MAX_BYTES:
        raise ValueError(f"expected a size between 1B and 1024TiB, got {format_value(value)}")
    return size


def parse_rate(value: object) -> float:
    """A second, in [0.1, 100000]."""
    rate = float(_RATE.read(value)[1])
    if not 0.1 <= rate <= 100_000:
        raise ValueError(f"expected a rate between 0.1/s and 100000/s, got {format_value(value)}")
    return rate


def parse_address(value: object) -> Address:
    """`HOST:PORT`, an IPv6 address in brackets."""
    if isinstance(value, Address):
        return value
    match = _ADDRESS.read(value)
    if int(match[2]) > 65535:
        raise ValueError(f"expected {_ADDRESS.expected}, got {format_value(value)}")
    return Address(match[1].strip("[]"), int(match[2]))


def parse_switch(value: object) -> bool:
    """YAML's own booleans, and `on` and `off`. Raises `ValueError`."""
    if isinstance(value, str) and value in ("on", "off"):
        return value == "on"
    if isinstance(value, bool):
        return value
    raise ValueError(f"expected on or off, got {format_value(value)}")


_POSITIVE_DURATION = ScalarForm("(?=.*[1-9])" + _DURATION.pattern, _DURATION.expected).schema
_POSITIVE_PERCENT = ScalarForm("(?=.*[1-9])" + _PERCENT.pattern, _PERCENT.expected).schema
SHARE = any_of(_PERCENT.schema, {"type": "number", "minimum": 0, "maximum": 1})
POSITIVE_SHARE = any_of(_POSITIVE_PERCENT, {"type": "number", "exclusiveMinimum": 0, "maximum": 1})

Duration = Annotated[float, BeforeValidator(parse_duration), WithJsonSchema(any_of(_DURATION.schema, {"const": 0}))]
"""Seconds, at least 0."""

PositiveDuration = Annotated[float, BeforeValidator(parse_positive_duration), WithJsonSchema(_POSITIVE_DURATION)]
"""Seconds, more than 0."""

DurationOrOff = Annotated[
    float | None,
    BeforeValidator(parse_duration_or_off),
    WithJsonSchema(any_of(_POSITIVE_DURATION, OFF, {"type": "null"})),
]
"""Seconds, more than 0; None where it is off."""

Share = Annotated[float, BeforeValidator(parse_share), WithJsonSchema(SHARE)]
"""In [0, 1]."""

PositiveShare = Annotated[float, BeforeValidator(parse_positive_share), WithJsonSchema(POSITIVE_SHARE)]
"""In (0, 1]."""

Size = Annotated[
    int, BeforeValidator(parse_size), WithJsonSchema(any_of(_SIZE.schema, {"type": "integer", "minimum": 1}))
]
"""Bytes, at least 1."""

Rate = Annotated[float, BeforeValidator(parse_rate), WithJsonSchema(_RATE.schema)]
"""A second, more than 0."""

Listen = Annotated[Address, PlainValidator(parse_address), WithJsonSchema(_ADDRESS.schema)]
"""Where to listen."""

Switch = Annotated[bool, BeforeValidator(parse_switch), WithJsonSchema(SWITCH)]
