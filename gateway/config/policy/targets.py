"""The section `route` of a rule beyond names of backends: splits, tiers and fallbacks."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, Any

from pydantic import PlainValidator, WithJsonSchema

from gateway.config.errors import format_value, unknown_name
from gateway.config.policy.features import feature_of
from gateway.config.policy.parameters import PARAMETERS_SCHEMA, TunedBackend, parse_parameters
from gateway.config.schema_types import Schema, any_of
from gateway.config.units import POSITIVE_SHARE, parse_positive_share
from gateway.config.validation import Problem

MAX_TIERS = 8

# As compiled


@dataclass(frozen=True, slots=True)
class TierPart:
    """One backend of a tier's split."""

    backend: str  # with parameters: the name of the `TunedBackend`
    share: float  # share of the calls, in (0, 1]; the parts of a tier sum to 1
    tuned: TunedBackend | None = None  # None leaves the client's parameters as they are


# As written


def parse_parts(value: object) -> tuple[TierPart, ...]:
    """Parse `main`, `{current: 95%, next: 5%}`, or one of them as `{backend: ..., parameters: ...}`.

    Raise `ValueError`.
    """
    if isinstance(value, dict) and isinstance(value.get("parameters"), dict):
        return _parse_tuned_parts(value)
    if isinstance(value, str) and value:
        return (TierPart(value, 1.0),)
    if not isinstance(value, dict) or not value:
        quotes = "; put it in quotes" if isinstance(value, bool | int | float) else ""
        raise ValueError(
            f"expected a backend, or a split such as {{current: 95%, next: 5%}}, got {format_value(value)}{quotes}"
        )
    parts = []
    for name, share in value.items():
        if not isinstance(name, str) or not name:
            raise ValueError(f"expected the name of a backend, got {format_value(name)}")
        try:
            parts.append(TierPart(name, parse_positive_share(share)))
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from None
    whole = math.fsum(part.share for part in parts)
    if abs(whole - 1.0) > 1e-6:
        raise ValueError(f"expected shares that add up to 100%, got {100 * whole:g}%")
    return tuple(parts)


def _parse_tuned_parts(value: dict[Any, Any]) -> tuple[TierPart, ...]:
    for key in value:
        if key not in ("backend", "parameters"):
            raise ValueError(unknown_name(f"key {format_value(key)}", key, ("backend", "parameters")))
    if "backend" not in value:
        raise ValueError("expected a backend next to parameters, e.g. backend: main")
    parameters = parse_parameters(value["parameters"])
    tuned = [(part, TunedBackend(part.backend, parameters)) for part in parse_parts(value["backend"])]
    return tuple(TierPart(each.name, part.share, each) for part, each in tuned)


def parse_steps(value: object) -> tuple[float, ...] | None:
    """Parse one complexity, or one per step between tiers, ascending. Raise `ValueError`."""
    if value is None:
        return None
    items = value if isinstance(value, list | tuple) else [value]
    steps = []
    for step in items:
        if isinstance(step, bool) or not isinstance(step, int | float):
            raise ValueError(f"expected a number, or one per step such as [0.3, 0.7], got {format_value(step)}")
        if not 0 <= step <= 1:  # NaN included
            raise ValueError(f"expected {'at most 1' if step > 1 else 'at least 0'}, got {format_value(step)}")
        steps.append(float(step))
    if not steps or any(a >= b for a, b in pairwise(steps)):
        got = ", ".join(f"{step:g}" for step in steps)
        raise ValueError(f"expected ascending numbers such as [0.3, 0.7], got [{got}]")
    return tuple(steps)


def _parse_optional_parts(value: object) -> tuple[TierPart, ...] | None:
    return None if value is None else parse_parts(value)


_PARTS = any_of(
    {"type": "string", "minLength": 1, "description": "a backend"},
    {
        "type": "object",
        "minProperties": 1,
        "additionalProperties": POSITIVE_SHARE,
        "description": "each backend with its share",
    },
)
_TIER = any_of(
    *_PARTS["anyOf"],
    {
        "type": "object",
        "properties": {"backend": _PARTS, "parameters": PARAMETERS_SCHEMA},
        "required": ["backend", "parameters"],
        "additionalProperties": False,
        "description": "a backend or a split, with the parameters of its requests",
    },
)
_STEP: Schema = {"type": "number", "minimum": 0, "maximum": 1}
_STEPS = any_of(_STEP, {"type": "array", "items": _STEP, "minItems": 1}, {"type": "null"})
TierParts = Annotated[tuple[TierPart, ...], PlainValidator(parse_parts), WithJsonSchema(_TIER)]
Parts = Annotated[
    tuple[TierPart, ...] | None, PlainValidator(_parse_optional_parts), WithJsonSchema(any_of(_PARTS, {"type": "null"}))
]
OptionalTierParts = Annotated[
    tuple[TierPart, ...] | None, PlainValidator(_parse_optional_parts), WithJsonSchema(any_of(_TIER, {"type": "null"}))
]
Steps = Annotated[tuple[float, ...] | None, PlainValidator(parse_steps), WithJsonSchema(_STEPS)]


def tier_problems(settings: Mapping[str, Any], thresholds: tuple[str, ...]) -> Iterator[Problem]:
    """Yield the contradictions between the keys that choose a backend.

    `thresholds` are the keys that choose a tier. The first of them has one number per step; the others work with two
    tiers only.
    """
    has = {key for key, value in settings.items() if value is not None}
    pair, of_tiers = has & {"light", "large"}, has & {*thresholds, "audit", "learn"}
    of_tiers |= {key for key in has if (feature := feature_of(f"route.{key}")) is not None and feature.among_tiers}
    if "backend" in has:
        if isinstance(settings["backend"], dict) and isinstance(settings["backend"].get("parameters"), dict):
            yield Problem("backend", "parameters need tiers to choose from, expected light and large, or tiers")
        for key in sorted(pair | of_tiers | has & {"tiers"}):
            yield Problem(key, "cannot stand next to backend, expected either backend, or light and large")
        return
    if "tiers" in has:
        for key in sorted(pair):
            yield Problem(key, "cannot stand next to tiers, expected either tiers, or light and large")
        yield from _step_count_problems(settings, has, thresholds)
    elif not pair | of_tiers:
        yield Problem(None, "a backend is required, e.g. backend: main, or light: light and large: large")
    else:
        for key in sorted({"light", "large"} - pair):
            yield Problem(None, f"{key!r} is required with {min(pair | of_tiers)!r}, e.g. {key}: {key}")
        if isinstance(steps := settings.get("escalate_above"), list) and len(steps) > 1:
            yield Problem("escalate_above", f"{len(steps)} numbers, expected one: from light to large is one step")
    first, *others = [rule for rule in thresholds if rule in has] or [""]
    for other in others:
        yield Problem(other, f"cannot stand next to {first}, expected only one of {', '.join(thresholds)}")


def _step_count_problems(settings: Mapping[str, Any], has: set[str], thresholds: tuple[str, ...]) -> Iterator[Problem]:
    tiers = settings["tiers"]
    if not isinstance(tiers, list):
        return  # the field itself reports it
    if not 2 <= len(tiers) <= MAX_TIERS:
        yield Problem("tiers", f"expected 2 to {MAX_TIERS} tiers, lightest first, got {len(tiers)}")
        return
    for name in tiers[1:-1]:
        if name in ("light", "large"):  # metrics use these names for the first and the last tier
            yield Problem(
                "tiers", f"a middle tier cannot be a backend named {name!r}, expected another name for that backend"
            )
    if len(tiers) == 2:
        return
    for key in thresholds[1:]:
        if key in has:
            yield Problem(key, "works with two tiers only, expected escalate_above with one number per step")
    steps = settings.get("escalate_above")
    count = len(steps) if isinstance(steps, list) else 0 if steps is None else 1
    if count != len(tiers) - 1 and not has & set(thresholds[1:]):
        example = f"escalate_above with {len(tiers) - 1} ascending numbers"
        message = f"{len(tiers)} tiers have {len(tiers) - 1} steps, expected {example}, got {count or 'none'}"
        yield Problem("escalate_above" if count else None, message)


def backend_names(route: Mapping[str, Any]) -> Iterator[tuple[tuple[str | int, ...], str]]:
    """Yield every backend that a `route:` as written names, as (path to it, name)."""
    for key in ("backend", "light", "large"):
        yield from _backend_names_at(route.get(key), (key,))
    for key in ("tiers", "fallback"):
        listed = route.get(key)
        for place, value in enumerate(listed if isinstance(listed, list) else ()):
            yield from _backend_names_at(value, (key, place))
    for key, section in route.items():
        if isinstance(section, dict) and (feature := feature_of(f"route.{key}")) is not None:
            for name in feature.backend_fields:
                yield from _backend_names_at(section.get(name), (key, name))


def tier_backends(value: object) -> list[str]:
    """Return the backends of one tier as written."""
    return [name for _, name in _backend_names_at(value, ())]


def _backend_names_at(value: object, path: tuple[str | int, ...]) -> Iterator[tuple[tuple[str | int, ...], str]]:
    if isinstance(value, str):
        yield path, value
    elif isinstance(value, dict) and isinstance(value.get("parameters"), dict):
        yield from _backend_names_at(value.get("backend"), (*path, "backend"))
    elif isinstance(value, dict):
        yield from (((*path, name), name) for name in value if isinstance(name, str))
