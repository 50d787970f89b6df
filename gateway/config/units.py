"""Durations, shares, sizes and addresses in configuration files.

Each `parse_*` function is pure and raises `ValueError` with the whole sentence. A `format_*` function is its inverse.
The types at the end annotate pydantic fields.
"""

from __future__ import annotations

import re
from typing import Annotated, NamedTuple

from pydantic import BeforeValidator, ByteSize, PlainValidator, WithJsonSchema

from gateway.config.errors import format_value
from gateway.config.schema_types import OFF, ON_OR_OFF, SWITCH, FileForm, ScalarForm, any_of

_DURATION = ScalarForm(r"(\d{1,12}(?:\.\d{1,9})?)(ms|s|m|h|d)", "a duration such as 250ms, 30s, 5m, 24h or 7d")
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_MAX_DURATION_S = 3650 * 86400.0  # with this bound, sums with wall clocks stay exact

_SHARE = re.compile(r"(\d{1,3}(?:\.\d{1,9})?)%", re.ASCII)
_PERCENT = ScalarForm(r"(100(\.0{1,9})?|0?\d{1,2}(\.\d{1,9})?)%", "a share such as 1%")  # in [0%, 100%], for editors

_SIZE = ScalarForm(r"(\d{1,15})(B|kB|KB|MB|GB|TB|KiB|MiB|GiB|TiB)", "a size such as 64MiB, 1GB or a number of bytes")
_MAX_BYTES = 2**50

_RATE = ScalarForm(r"(\d{1,6}(?:\.\d{1,6})?)/s", "a rate such as 50/s")

_ADDRESS = ScalarForm(
    r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9_.-]+):(\d{1,5})", "HOST:PORT such as 127.0.0.1:8080 or [::1]:8080"
)


class Address(NamedTuple):
    """An address to listen on. Port 0 lets the system choose."""

    host: str  # without the brackets of an IPv6 address
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def loopback(self) -> bool:
        """Whether only this machine can reach the address."""
        return self.host in ("localhost", "::1") or re.fullmatch(r"127(\.\d+){3}", self.host) is not None


def parse_duration(value: object) -> float:
    """Return seconds in [0, 10 years]. Refuse a number without a unit, because its unit is unknown; 0 is 0."""
    if value == 0 and not isinstance(value, bool):
        return 0.0
    match = _DURATION.read(value)
    seconds = float(match[1]) * _SECONDS[match[2]]
    if seconds > _MAX_DURATION_S:
        raise ValueError(f"expected a duration of at most 3650d, got {format_value(value)}")
    return seconds


def parse_positive_duration(value: object) -> float:
    """Return seconds in (0, 10 years]."""
    seconds = parse_duration(value)
    if seconds <= 0:
        raise ValueError(f"expected a duration longer than 0s, got {format_value(value)}")
    return seconds


def parse_duration_or_off(value: object) -> float | None:
    """Return seconds in (0, 10 years], or None if it is off. YAML 1.1 reads a bare `off` as false; in quotes it stays
    text."""
    if value is None or value is False or value == "off":
        return None
    try:
        return parse_positive_duration(value)
    except ValueError:
        raise ValueError(f"expected off or a duration such as 5m, got {format_value(value)}") from None


def parse_share(value: object) -> float:
    """Return a share in [0, 1]. Refuse the bare number 1, which may mean 1% or 100%."""
    if isinstance(value, str) and (match := _SHARE.fullmatch(value)):
        share = float(match[1]) / 100
    elif isinstance(value, float) or (isinstance(value, int) and not isinstance(value, bool) and value == 0):
        share = float(value)
    else:
        doubt = ", which may mean 1% or 100%" if value == 1 and not isinstance(value, bool) else ""
        raise ValueError(f"expected a share such as 1% or 0.01, got {format_value(value)}{doubt}")
    if not 0 <= share <= 1:
        raise ValueError(f"expected a share between 0% and 100%, got {format_value(value)}")
    return share


def parse_positive_share(value: object) -> float:
    """Return a share in (0, 1]."""
    share = parse_share(value)
    if share <= 0:
        raise ValueError(f"expected a share above 0% and up to 100%, got {format_value(value)}")
    return share


def parse_size(value: object) -> int:
    """Return bytes in [1, 1 PiB], from a whole number with or without a unit."""
    if isinstance(value, int) and not isinstance(value, bool):
        size = value
    else:
        match = _SIZE.read(value)
        size = int(match[1]) * int(ByteSize.byte_sizes[match[2].lower()])
    if not 1 <= size <= _MAX_BYTES:
        raise ValueError(f"expected a size between 1B and 1024TiB, got {format_value(value)}")
    return size


def parse_rate(value: object) -> float:
    """Return a rate per second in [0.1, 100000]."""
    rate = float(_RATE.read(value)[1])
    if not 0.1 <= rate <= 100_000:
        raise ValueError(f"expected a rate between 0.1/s and 100000/s, got {format_value(value)}")
    return rate


def parse_address(value: object) -> Address:
    """Parse `HOST:PORT`; an IPv6 address is in brackets."""
    if isinstance(value, Address):
        return value
    match = _ADDRESS.read(value)
    if int(match[2]) > 65535:
        raise ValueError(f"expected {_ADDRESS.expected}, got {format_value(value)}")
    return Address(match[1].strip("[]"), int(match[2]))


def parse_switch(value: object) -> bool:
    """Parse `on` and `off`, and YAML's own booleans."""
    if isinstance(value, str) and value in ("on", "off"):
        return value == "on"
    if isinstance(value, bool):
        return value
    raise ValueError(f"expected on or off, got {format_value(value)}")


def format_duration(seconds: float | None) -> str:
    """Return `30s` for 30, `24h` for a day, and `off` for None."""
    if seconds is None:
        return "off"
    if seconds < 1:
        return f"{seconds * 1000:g}ms" if seconds else "0s"
    units = [unit for unit in "dhm" if seconds % _SECONDS[unit] == 0 and (unit != "d" or seconds > _SECONDS["d"])]
    unit = (units or ["s"])[0]
    return f"{seconds / _SECONDS[unit]:g}{unit}"


def format_share(share: float) -> str:
    """Return `1%` for 0.01."""
    return f"{100 * share:g}%"


def format_size(size: int) -> str:
    """Return `64MiB` for 2**26, in the largest binary unit that divides the size."""
    unit, power = max(
        ((unit, 1024**i) for i, unit in enumerate(("B", "KiB", "MiB", "GiB"))),
        key=lambda u: u[1] if size % u[1] == 0 else 0,
    )
    return f"{size // power}{unit}"


_POSITIVE_DURATION = ScalarForm("(?=.*[1-9])" + _DURATION.pattern, _DURATION.expected).schema
_POSITIVE_PERCENT = ScalarForm("(?=.*[1-9])" + _PERCENT.pattern, _PERCENT.expected).schema
SHARE = any_of(_PERCENT.schema, {"type": "number", "minimum": 0, "maximum": 1})
POSITIVE_SHARE = any_of(_POSITIVE_PERCENT, {"type": "number", "exclusiveMinimum": 0, "maximum": 1})

Duration = Annotated[
    float,
    BeforeValidator(parse_duration),
    WithJsonSchema(any_of(_DURATION.schema, {"const": 0})),
    FileForm(format_duration),
]
"""Seconds, at least 0."""

PositiveDuration = Annotated[
    float, BeforeValidator(parse_positive_duration), WithJsonSchema(_POSITIVE_DURATION), FileForm(format_duration)
]
"""Seconds, more than 0."""

DurationOrOff = Annotated[
    float | None,
    BeforeValidator(parse_duration_or_off),
    WithJsonSchema(any_of(_POSITIVE_DURATION, OFF, {"type": "null"})),
    FileForm(format_duration),
]
"""Seconds, more than 0, or None if it is off."""

Share = Annotated[float, BeforeValidator(parse_share), WithJsonSchema(SHARE), FileForm(format_share)]
"""A share in [0, 1]."""

PositiveShare = Annotated[
    float, BeforeValidator(parse_positive_share), WithJsonSchema(POSITIVE_SHARE), FileForm(format_share)
]
"""A share in (0, 1]."""

Size = Annotated[
    int,
    BeforeValidator(parse_size),
    WithJsonSchema(any_of(_SIZE.schema, {"type": "integer", "minimum": 1})),
    FileForm(format_size),
]
"""Bytes, at least 1."""

Rate = Annotated[float, BeforeValidator(parse_rate), WithJsonSchema(_RATE.schema)]
"""A rate per second, more than 0."""

Listen = Annotated[Address, PlainValidator(parse_address), WithJsonSchema(_ADDRESS.schema), FileForm(str)]
"""An address to listen on."""

Switch = Annotated[bool, BeforeValidator(parse_switch), WithJsonSchema(SWITCH), ON_OR_OFF]
