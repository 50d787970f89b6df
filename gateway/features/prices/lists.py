"""The charges of a backend with list prices."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from gateway.bounded_cache import BoundedCache
from gateway.dialects.model_names import ModelNames
from gateway.features.prices.catalogue import ListedModel, load_catalogue
from gateway.prices import UNPRICED, Price

LOG = logging.getLogger("nearhit.prices")

MAX_NAMES = 1_024  # model names that a backend remembers; clients may send any


class ListTariff:
    """The list prices of the backend `name`. `fixed` is the model that all its calls are priced as; without it the name
    that goes upstream decides. `stated` has the amounts that replace those of the list.

    Raise `LookupError` with a sentence if the provider or the fixed model is unknown.
    """

    charges = True

    def __init__(
        self,
        name: str,
        provider: str,
        fixed: str | None,
        names: ModelNames,
        stated: Mapping[str, Any],
        data_dir: Path,
        wall: Callable[[], float],
    ) -> None:
        self._catalogue = load_catalogue(data_dir)
        if provider not in self._catalogue.providers:
            raise LookupError(f"no price list has the provider {provider[:100]!r}; `nearhit prices list` names them")
        if fixed is not None and self._catalogue.find(provider, fixed) is None:
            raise LookupError(f"{provider} lists no model {fixed[:100]!r}; see `nearhit prices list {provider}`")
        self._name = name
        self._provider = provider
        self._fixed = fixed
        self._names = names
        self._stated = stated
        self._wall = wall
        self._found: BoundedCache[str, ListedModel | None] = BoundedCache(MAX_NAMES)
        self._warnings = 0

    def price(self, model: str) -> Price:
        """Return the price of a call now, by the model that its client names; `UNPRICED` if the list has none."""
        name = self._fixed or self._names.upstream_name(model) or model
        if name not in self._found:
            self._found.put(name, self._find(name))
        listed = self._found.get(name)
        if listed is None:
            return UNPRICED
        price = listed.price_at(self._wall())
        return _with(price, self._stated) if self._stated and price.is_stated else price

    def _find(self, name: str) -> ListedModel | None:
        found = self._catalogue.find(self._provider, name) if name else None
        if found is None and name and self._warnings < MAX_NAMES:
            self._warnings += 1
            message = "calls of this model are not priced: state its price, or the model to price it as"
            fields = {"backend": self._name, "model": name[:200], "keys": "price, or price.catalogue"}
            LOG.warning(message, extra={"fields": fields})
        return found


def _with(price: Price, stated: Mapping[str, Any]) -> Price:
    """Return a price of a list with the amounts that replace its own, above each tier, too. Units and paths that they
    do not name keep the list's."""
    amounts = dict(stated)
    if "per_unit" in stated:
        named = {unit for unit, _ in stated["per_unit"]}
        amounts["per_unit"] = (*stated["per_unit"], *(each for each in price.per_unit if each[0] not in named))
    if "per_call" in stated:
        amounts["per_call"] = (*stated["per_call"], *price.per_call)
    above = tuple((start, _with(each, stated)) for start, each in price.above)
    return replace(price, **amounts, above=above)


def provider_at(url: str, data_dir: Path) -> str | None:
    """Return the provider whose address it is, or None."""
    return load_catalogue(data_dir).provider_at(url)
