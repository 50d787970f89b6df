"""`nearhit prices`: what the backends charge, the catalogue of list prices, and its renewal."""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Iterator, Mapping
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import orjson

from gateway.cli.output import CommandFailed, pluralise, print_result
from gateway.cli.parser import Command
from gateway.config.load import load_config
from gateway.features.prices.catalogue import NAME, Catalogue, ListedModel, load_catalogue
from gateway.features.prices.refresh import catalogue_of
from gateway.prices import Price
from gateway.upstream.tariffs import listed_of, tariffs_of

PACKAGE = "genai-prices"
NOT_PRICED = "not priced"


def register(command: Command) -> None:
    command.add_command(
        "show",
        "Show what the backends of config.yaml charge for their models.",
        _show,
        "",
        about="A backend has the price that it states, or the list price of the provider at its address. A model that "
        "no list has is not priced: its calls count in no cost, and never as free.",
    )
    listed = command.add_command("list", "List the catalogue, or a provider's models.", _list, "", "openai --json")
    listed.add_argument("provider", nargs="?", help="a provider, such as openai; default: the names of all")
    refresh = command.add_command(
        "refresh",
        f"Renew the catalogue from the installed package {PACKAGE}.",
        _refresh,
        "",
        about=f"Run `pip install --upgrade {PACKAGE}` first, in the environment of nearhit. The command contacts "
        f"nothing. It writes {NAME} in data_dir. A gateway reads it at its next start.",
        fault="the package is not installed, or the file cannot be written",
    )
    refresh.add_argument("--output", type=Path, metavar="FILE", help=f"write this file instead of data_dir/{NAME}")


def _show(arguments: argparse.Namespace) -> int:
    config = load_config(arguments.config, os.environ)
    tariffs, shown, lines = tariffs_of(config), {}, []
    for name, section in config.backends.items():
        listed = listed_of(section, config.data_dir)
        models = [] if listed is None else [listed.fixed or listed.default, *(model for _, model in listed.aliases)]
        source = "price" if section.price.states and listed is None else None if listed is None else listed.provider
        prices = {model: tariffs[name].price(model) for model in models if model} or {"": tariffs[name].price("")}
        named = any(prices)
        if listed is not None and not named:
            prices = {}
        shown[name] = {"source": source, "models": {model: _fields(price) for model, price in prices.items()}}
        lines += [f"{name}: {_source_text(source)}"]
        lines += [f"  {model + ': ' if model else ''}{_price_text(price)}" for model, price in prices.items()]
        lines += [] if named or listed is None else ["  by the model that a client names"]
    catalogue = load_catalogue(config.data_dir)
    return print_result(arguments, {"catalogue": catalogue.source, "backends": shown}, "\n".join(lines))


def _source_text(source: str | None) -> str:
    if source is None:
        return "no price"
    return "its own price" if source == "price" else f"list prices of {source}"


def _list(arguments: argparse.Namespace) -> int:
    catalogue = _catalogue(arguments.config)
    if arguments.provider is None:
        counts: dict[str, int] = dict.fromkeys(catalogue.providers, 0)
        for each in catalogue.models():
            counts[each.provider] += 1
        lines = [f"{provider}: {pluralise(count, 'model')}" for provider, count in counts.items()]
        text = "\n".join([f"from {catalogue.source}", *lines])
        return print_result(arguments, {"catalogue": catalogue.source, "providers": counts}, text)
    if arguments.provider not in catalogue.providers:
        raise CommandFailed(f"no list has the provider {arguments.provider!r}; `nearhit prices list` names them")
    models = [each for each in catalogue.models() if each.provider == arguments.provider]
    now = time.time()
    value = {"catalogue": catalogue.source, "models": [_model_fields(each, now) for each in models]}
    return print_result(arguments, value, "\n".join(f"{each.id}: {_price_text(each.price_at(now))}" for each in models))


def _catalogue(path: Path) -> Catalogue:
    """Return the catalogue of the gateway in this folder; the shipped one if there is no configuration."""
    return load_catalogue(load_config(path, os.environ).data_dir if path.is_file() else None)


def _model_fields(model: ListedModel, now: float) -> dict[str, Any]:
    price = model.price_at(now)
    since = max((each.since for each in model.prices if each.price is price), default="")
    return {
        "model": model.id,
        "window": model.window,
        "modalities": list(model.modalities),
        "since": since or None,
        "price": _fields(price),
    }


def _fields(price: Price) -> Mapping[str, Any] | None:
    """Return the amounts of a price, named as in `price` of a backend; None: it is not priced."""
    if not price.is_stated:
        return None
    amounts = {
        "input_per_million": price.input_per_million,
        "cached_input_per_million": price.cached_input_per_million,
        "written_input_per_million": price.written_input_per_million,
        "output_per_million": price.output_per_million,
        "reasoning_per_million": price.reasoning_per_million,
        **{str(unit): dollars for unit, dollars in price.per_unit},
    }
    found: dict[str, Any] = {name: dollars for name, dollars in amounts.items() if dollars is not None}
    if price.per_call:
        found["per_call"] = dict(price.per_call)
    if price.above:
        found["above"] = {str(start): _fields(each) for start, each in price.above}
    return found


def _price_text(price: Price) -> str:
    return ", ".join(_amounts(price)) if price.is_stated else NOT_PRICED


def _amounts(price: Price) -> Iterator[str]:
    if price.has_tokens or not (price.per_unit or price.per_call):
        yield f"${price.input_per_million:g} in"
        if price.cached_input_per_million is not None:
            yield f"${price.cached_input_per_million:g} cached"
        yield f"${price.output_per_million:g} out a million tokens"
    for unit, dollars in price.per_unit:
        yield f"${dollars:g} {unit.replace('_', ' ')}"
    for path, dollars in price.per_call:
        yield f"${dollars:g} a call{'' if path == '*' else f' of {path}'}"
    for start, each in price.above:
        yield f"above {start:,} tokens: ${each.input_per_million:g} in, ${each.output_per_million:g} out"


def _refresh(arguments: argparse.Namespace) -> int:
    try:
        providers, release = import_module("genai_prices.data").providers, version(PACKAGE)
    except (ImportError, PackageNotFoundError):
        raise CommandFailed(
            f"{PACKAGE} is not installed in this environment; run `pip install {PACKAGE}`, which nearhit needs for "
            "nothing else"
        ) from None
    path = arguments.output or load_config(arguments.config, os.environ).data_dir / NAME
    content = catalogue_of(providers, release)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    except OSError as error:
        raise CommandFailed(f"{path} cannot be written: {error.strerror}") from None
    count = sum(1 for _ in Catalogue(orjson.loads(content)).models())
    value = {"file": str(path), "source": f"{PACKAGE} {release}", "models": count}
    return print_result(arguments, value, f"{path}: {pluralise(count, 'model')} from {PACKAGE} {release}")
