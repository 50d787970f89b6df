"""Turn the prices of the package genai-prices into the file of the catalogue. Pure.

The package (MIT, https://github.com/pydantic/genai-prices) has the price lists of 48 providers. Its own format takes a
second to import, and an HTTP client with it. So the gateway reads a file of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import orjson

from gateway.features.prices.catalogue import FORMAT

# Our name of a price, the name in the package, and what the package's amount is divided by.
_AMOUNTS = (
    ("input", "input_mtok", 1),
    ("cached", "cache_read_mtok", 1),
    ("written", "cache_write_mtok", 1),
    ("output", "output_mtok", 1),
    ("reasoning", "output_reasoning_mtok", 1),
    ("minute", "audio_hours", 60),
    ("characters", "input_mchars", 1),
    ("call", "requests_kcount", 1000),
)
_MODALITIES = {
    "text": ("input_mtok", "output_mtok"),
    "image": ("input_image_mtok", "output_image_mtok"),
    "audio": ("input_audio_mtok", "output_audio_mtok", "audio_hours", "input_audio_hours"),
    "speech": ("input_mchars",),
    "video": ("input_video_mtok", "output_video_mtok"),
    "document": ("input_document_kpages", "input_annotated_document_kpages"),
}
# US dollars of a search with up to 100 documents, by provider and model, as https://cohere.com/pricing stated them in
# November 2026. The package has no price of a search.
_SEARCHES = {
    "cohere": {
        "rerank-v4.0-pro": 0.0025,
        "rerank-v4.0-fast": 0.002,
        "rerank-v3.5": 0.002,
        "rerank-english-v3.0": 0.002,
        "rerank-multilingual-v3.0": 0.002,
    }
}
_CLAUSES = ("starts_with", "ends_with", "contains", "regex", "equals")


def catalogue_of(providers: Iterable[Any], version: str) -> bytes:
    """Return the file, with a line for each model. `providers` is `genai_prices.data.providers`."""
    head = orjson.dumps({"format": FORMAT, "source": f"genai-prices {version}"})
    return head[:-1] + b',"providers":[\n' + b",\n".join(map(_provider_text, providers)) + b"\n]}\n"


def _provider_text(provider: Any) -> bytes:
    head = {
        "id": provider.id,
        "name": provider.name,
        "address": provider.api_pattern,
        "others": list(provider.fallback_model_providers or ()),
    }
    models = [_model(model) for model in provider.models]
    known = {model["id"] for model in models}
    models += [_search(*each) for each in _SEARCHES.get(provider.id, {}).items() if each[0] not in known]
    return orjson.dumps(head)[:-1] + b',"models":[\n' + b",\n".join(map(orjson.dumps, models)) + b"]}"


def _search(model: str, dollars: float) -> dict[str, Any]:
    return {"id": model, "match": {"equals": model}, "modalities": ["text"], "prices": [{"search": dollars}]}


def _model(model: Any) -> dict[str, Any]:
    conditions = _conditions(model)
    modalities = [
        name
        for name, keys in _MODALITIES.items()
        if any(_value(prices, key) is not None for prices, _ in conditions for key in keys)
    ]
    found = {"id": model.id, "match": _clause(model.match)}
    window = {} if model.context_window is None else {"window": model.context_window}
    return {**found, **window, "modalities": modalities, "prices": [_price(*each) for each in conditions]}


def _conditions(model: Any) -> list[tuple[Any, Any]]:
    """Return the prices of a model, each with its condition or None."""
    if isinstance(model.prices, list):
        return [(each.prices, each.constraint) for each in model.prices]
    return [(model.prices, None)]


def _value(prices: Any, key: str) -> Any:
    return getattr(prices, key, None)


def _price(prices: Any, constraint: Any) -> dict[str, Any]:
    """Return one price with its condition. A tier applies to the whole call, as providers bill it."""
    starts = sorted({tier.start for _, key, _ in _AMOUNTS for tier in getattr(_value(prices, key), "tiers", ())})
    above = [[start, dict(_amounts(prices, start))] for start in starts]
    return {**_condition(constraint), **dict(_amounts(prices, None)), **({"above": above} if above else {})}


def _condition(constraint: Any) -> Mapping[str, Any]:
    if hasattr(constraint, "start_date"):
        return {"from": constraint.start_date.isoformat()}
    if hasattr(constraint, "start_time"):
        return {"hours": [_minutes(constraint.start_time), _minutes(constraint.end_time)]}
    return {}


def _minutes(time: Any) -> int:
    """Return a time of day (UTC) in minutes."""
    return int(time.hour * 60 + time.minute)


def _amounts(prices: Any, start: int | None) -> Iterator[tuple[str, float]]:
    """Yield the amounts of calls with more than `start` input tokens; None: of all others."""
    for name, key, divisor in _AMOUNTS:
        value = _value(prices, key)
        if hasattr(value, "tiers"):
            reached = [tier.price for tier in value.tiers if start is not None and tier.start <= start]
            value = reached[-1] if reached else value.base
        if value is not None:
            yield name, float(value) / divisor


def _clause(clause: Any) -> dict[str, Any]:
    for attribute, name in (("or_", "or"), ("and_", "and")):
        parts = getattr(clause, attribute, None)
        if parts is not None:
            return {name: [_clause(part) for part in parts]}
    name = next(each for each in _CLAUSES if hasattr(clause, each))
    text = getattr(clause, name)
    return {name: text if name == "regex" else text.lower()}
