"""The charges of each backend: its own `price`, or the list price of the provider at its address."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from ipaddress import ip_address
from pathlib import Path
from time import time
from typing import NamedTuple, cast
from urllib.parse import urlsplit

from gateway.config import Config
from gateway.config.backends import BackendSection, HttpUpstream, RemoteBackendSection
from gateway.dialects.model_names import ModelNames
from gateway.errors import StartupError
from gateway.prices import UNPRICED, Tariff

# Imported for a backend that has list prices, or whose address may be that of a provider.
LISTS = "gateway.features.prices.lists"

INTERNAL = (".local", ".internal", ".localhost", ".svc", ".lan", ".home.arpa", ".test")
"""The ends of host names that are no provider's."""


class Listed(NamedTuple):
    """A backend with list prices, as plain values."""

    provider: str
    fixed: str | None  # the model that all its calls are priced as
    default: str | None  # the model name that goes upstream, as in `ModelNames`
    aliases: tuple[tuple[str, str], ...] = ()


def tariffs_of(config: Config, wall: Callable[[], float] = time) -> dict[str, Tariff]:
    """Return what each backend charges. `wall` tells the time whose prices count. Raise `StartupError` if a backend
    names a list that does not exist."""
    return {name: _tariff_of(name, section, config.data_dir, wall) for name, section in config.backends.items()}


def _tariff_of(name: str, section: BackendSection, data_dir: Path, wall: Callable[[], float]) -> Tariff:
    listed = listed_of(section, data_dir)
    if listed is None:
        return section.price.compiled if section.price.states else UNPRICED
    return list_tariff(name, listed, data_dir, wall, section.price.stated)


def list_tariff(
    name: str,
    listed: Listed,
    data_dir: Path,
    wall: Callable[[], float],
    stated: Mapping[str, object] | None = None,
) -> Tariff:
    """Return the list prices of the backend `name`. `stated` has the amounts that its section states instead."""
    names = ModelNames(listed.default, tuple((glob, model) for glob, model in listed.aliases))
    try:
        build = import_module(LISTS).ListTariff
        return cast(Tariff, build(name, listed.provider, listed.fixed, names, stated or {}, data_dir, wall))
    except LookupError as error:
        raise StartupError(f"backends.{name}.price.catalogue: {error.args[0]}") from None


def listed_of(section: BackendSection, data_dir: Path) -> Listed | None:
    """Return how list prices apply to a backend, or None if it has its own price or no provider is known."""
    catalogue = section.price.catalogue
    remote = isinstance(section, RemoteBackendSection)
    names = (section.model, tuple(section.models.items())) if isinstance(section, RemoteBackendSection) else (None, ())
    if catalogue not in (None, "off"):
        provider, _, model = str(catalogue).partition("/")
        return Listed(provider, model or None, *names)
    if catalogue == "off" or section.price.states or not remote:
        return None
    urls = [upstream.url for upstream in section.addresses if isinstance(upstream, HttpUpstream)]
    if not any(map(_may_be_a_provider, urls)):
        return None
    first, *others = {import_module(LISTS).provider_at(url, data_dir) for url in urls}
    return None if first is None or others else Listed(first, None, *names)


def _may_be_a_provider(url: str) -> bool:
    """Return whether the host is a public name, so that a gateway in front of own models reads no catalogue."""
    host = urlsplit(url).hostname or ""
    if "." not in host or host.endswith(INTERNAL):
        return False
    try:
        ip_address(host)
    except ValueError:
        return True
    return False
