"""The catalogue of list prices: which provider an address belongs to, and what a model costs there at a time."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import orjson

from gateway.errors import StartupError
from gateway.prices import UNPRICED, Price, Unit

FORMAT = 1
NAME = "prices.json"  # in the data folder: written by `nearhit prices refresh`, read in place of the shipped file

_COMPACT_DATE = re.compile(r"-(20\d\d)(\d\d)(\d\d)$")  # gpt-5.2-20251211 is gpt-5.2-2025-12-11


@dataclass(frozen=True, slots=True)
class ListPrice:
    """A price, and when it counts: from a day on, or daily between two times. Times are UTC."""

    price: Price
    since: str = ""  # ISO date; "" if always
    minutes: tuple[int, int] | None = None  # of the day

    def counts(self, at: datetime) -> bool:
        if self.minutes is not None:
            first, last = self.minutes
            now = at.hour * 60 + at.minute
            return first <= now < last if first <= last else now >= first or now < last
        return at.date().isoformat() >= self.since


@dataclass(frozen=True, slots=True)
class ListedModel:
    """A model of a provider. `window` is in tokens; None: the list does not tell."""

    provider: str
    id: str
    window: int | None
    modalities: tuple[str, ...]
    prices: tuple[ListPrice, ...]

    def price_at(self, wall: float) -> Price:
        """Return the price at a time, in seconds since the epoch. The last of those that count decides."""
        if len(self.prices) == 1:
            return self.prices[0].price
        at = datetime.fromtimestamp(wall, UTC)
        return next((each.price for each in reversed(self.prices) if each.counts(at)), self.prices[0].price)


@dataclass(frozen=True, slots=True)
class Provider:
    """A provider with its list. `others` are providers whose models it serves at their prices."""

    id: str
    address: re.Pattern[str]
    others: tuple[str, ...]
    models: Sequence[Mapping[str, Any]]

    def find(self, name: str) -> ListedModel | None:
        for model in self.models:
            if _matches(model["match"], name):
                return _listed(self.id, model)
        return None


class Catalogue:
    """The price lists of all providers, as the file has them."""

    def __init__(self, document: Mapping[str, Any]) -> None:
        self.source = str(document["source"])
        self._providers = {
            each["id"]: Provider(
                each["id"], re.compile(each["address"], re.IGNORECASE), tuple(each["others"]), each["models"]
            )
            for each in document["providers"]
        }

    @property
    def providers(self) -> Sequence[str]:
        return tuple(self._providers)

    def provider_at(self, url: str) -> str | None:
        """Return the provider whose address it is, or None if no list belongs to it."""
        return next((each.id for each in self._providers.values() if each.address.match(url)), None)

    def find(self, provider: str, name: str) -> ListedModel | None:
        """Return a model by a name that is sent to a provider, or None if no list has it.

        Names are also found in the forms of clients and of other gateways: `openai/gpt-4o`, `models/gemini-2.5-pro`,
        the ARN of an inference profile, a date without dashes.
        """
        own = self._providers[provider]
        lists = [own, *(self._providers[each] for each in own.others if each in self._providers)]
        for form in _forms(name.lower()):
            for each in lists:
                if (found := each.find(form)) is not None:
                    return found
        return None

    def models(self) -> Iterator[ListedModel]:
        """Yield all models."""
        for provider in self._providers.values():
            yield from (_listed(provider.id, model) for model in provider.models)


def _forms(name: str) -> Iterator[str]:
    dashed = _COMPACT_DATE.sub(r"-\1-\2-\3", name)
    yield from dict.fromkeys((name, dashed))
    last = name.rpartition("/")[2]
    if last != name:
        yield last
        yield _COMPACT_DATE.sub(r"-\1-\2-\3", last)


def _matches(clause: Mapping[str, Any], name: str) -> bool:
    ((kind, value),) = clause.items()
    match kind:
        case "or":
            return any(_matches(part, name) for part in value)
        case "and":
            return all(_matches(part, name) for part in value)
        case "equals":
            return bool(name == value)
        case "starts_with":
            return name.startswith(value)
        case "ends_with":
            return name.endswith(value)
        case "contains":
            return value in name
    return re.search(value, name) is not None


def _listed(provider: str, model: Mapping[str, Any]) -> ListedModel:
    prices = tuple(map(_list_price, model["prices"]))
    return ListedModel(provider, model["id"], model.get("window"), tuple(model["modalities"]), prices)


def _list_price(value: Mapping[str, Any]) -> ListPrice:
    price = _price({name: amount for name, amount in value.items() if name not in ("from", "hours", "above")})
    above = tuple((start, _price(amounts)) for start, amounts in value.get("above", ()))
    hours = value.get("hours")
    minutes = None if hours is None else (int(hours[0]), int(hours[1]))
    return ListPrice(replace(price, above=above) if above else price, value.get("from", ""), minutes)


def _price(amounts: Mapping[str, float]) -> Price:
    if not amounts:
        return UNPRICED  # the list bills what no usage reports, such as pages
    units = ((Unit.MINUTE, "minute"), (Unit.CHARACTERS, "characters"), (Unit.SEARCH, "search"))
    call = amounts.get("call")
    return Price(
        amounts.get("input", 0.0),
        amounts.get("output", 0.0),
        amounts.get("cached"),
        () if call is None else (("*", call),),
        tuple((unit, amounts[name]) for unit, name in units if name in amounts),
        written_input_per_million=amounts.get("written"),
        reasoning_per_million=amounts.get("reasoning"),
    )


@lru_cache(maxsize=4)  # one in a gateway: the backends share it
def load_catalogue(data_dir: Path | None) -> Catalogue:
    """Return the catalogue of the data folder, else the shipped one. Raise `StartupError` if the file is damaged."""
    own = None if data_dir is None else data_dir / NAME
    if own is None or not own.is_file():
        return Catalogue(orjson.loads((files("gateway.features.prices") / "catalogue.json").read_bytes()))
    try:
        document = orjson.loads(own.read_bytes())
        if document["format"] != FORMAT:
            raise ValueError(f"format {document['format']}, expected {FORMAT}")
        return Catalogue(document)
    except (OSError, ValueError, KeyError, TypeError, re.error) as error:
        raise StartupError(f"{own} cannot be read: {error}; run `nearhit prices refresh`, or remove it") from None
