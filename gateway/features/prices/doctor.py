"""Warnings of `nearhit doctor` about models of backends that no list of prices has."""

from __future__ import annotations

from collections.abc import Iterator

from gateway.cli.doctor import Finding, warning
from gateway.config import Config
from gateway.errors import StartupError
from gateway.upstream.tariffs import listed_of, tariffs_of


def unpriced(config: Config) -> Iterator[Finding]:
    """Yield a warning for each backend with list prices that sends a model which the list does not have."""
    try:
        tariffs = tariffs_of(config)
    except StartupError as error:
        yield warning("prices", str(error), "name a provider and model of `nearhit prices list`")
        return
    for name, section in config.backends.items():
        listed = listed_of(section, config.data_dir)
        if listed is None or listed.fixed:
            continue
        sent = dict.fromkeys(model for model in (listed.default, *(each for _, each in listed.aliases)) if model)
        unknown = [model for model in sent if not tariffs[name].price(model).is_stated]
        if unknown:
            yield warning(
                "prices",
                f"backend '{name}': {', '.join(unknown)} not in the list prices of {listed.provider}, so not priced",
                f"state backends.{name}.price, or price: {{catalogue: {listed.provider}/MODEL}}, or run `nearhit "
                "prices refresh`",
            )
