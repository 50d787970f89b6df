"""The section `providers`: each model with its endpoints becomes a backend."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from gateway.config.errors import format_value
from gateway.config.fields import http_url
from gateway.features.importing.document import Setting
from gateway.features.importing.draft import Draft, unique_name
from gateway.features.importing.validity import fault_of

MAX_ATTEMPTS = 10
_PRICES = (
    ("prompt_per_1m", "input_per_million"),
    ("completion_per_1m", "output_per_million"),
    ("cached_input_per_1m", "cached_input_per_million"),
)


@dataclass(frozen=True, slots=True)
class Models:
    """The backend of each model name, and the default model."""

    backends: dict[str, str]
    default: str
    effort: str | None  # of models that reason and have no effort of their own


def read_models(providers: Setting, draft: Draft) -> Models | None:
    """Return the models, or None if no model has an endpoint."""
    backends: dict[str, str] = {}
    for entry in providers.key("models").entries():
        name = entry.key("name").text()
        section = None if name is None else _Reader(entry, name, draft).section()
        if section is not None and (fault := fault_of(section)):
            entry.missing(f"the model is left out, because its backend would not load: {fault}")
        elif name is not None and section is not None:
            backends[name] = draft.add_backend(name.rpartition("/")[2], section)
            entry.key("name").carried(f"backend {backends[name]}, and a route for requests that name the model")
    if not backends:
        return None
    defaults = providers.key("defaults")
    chosen = defaults.key("model") if defaults.key("model").is_set else defaults.key("default_model")
    default = chosen.value if isinstance(chosen.value, str) and chosen.value in backends else next(iter(backends))
    if default == chosen.value:
        chosen.carried(f"backend {backends[default]} answers what no decision covers")
    else:
        chosen.missing(f"no model with an endpoint has this name; {default} takes its place")
    effort = defaults.key("reasoning_effort")
    effort = effort if effort.is_set else defaults.key("default_reasoning_effort")
    return Models(backends, default, effort.value if isinstance(effort.value, str) else None)


class _Reader:
    """Reads one model, and reports each of its settings."""

    def __init__(self, entry: Setting, name: str, draft: Draft) -> None:
        self._entry = entry
        self._name = name
        self._draft = draft
        stated = entry.key("api_format")
        self._anthropic = stated.value == "anthropic"
        stated.carried(f"adapter: {self._adapter}")

    @property
    def _adapter(self) -> str:
        return "anthropic" if self._anthropic else "openai"

    def section(self) -> dict[str, Any] | None:
        """Return the backend, or None if the model has no endpoint."""
        upstreams = list(self._upstreams())
        if not upstreams:
            self._entry.missing(
                "the model is left out: no entry of backend_refs has an endpoint that speaks OpenAI's or Anthropic's "
                "protocol"
            )
            return None
        where = upstreams[0] if len(upstreams) == 1 else {"upstreams": upstreams}
        where.pop("weight", None)
        upstream_name = self._entry.key("provider_model_id")
        upstream_name.carried("model: the name that goes upstream")
        model = upstream_name.value if isinstance(upstream_name.value, str) else self._name
        return {"adapter": self._adapter} | where | {"model": model} | self._retries() | self._price()

    def _upstreams(self) -> Iterator[dict[str, Any]]:
        for ref in self._entry.key("backend_refs").entries():
            url = self._url(ref)
            if url is None:
                continue
            upstream: dict[str, Any] = {"url": url}
            if (variable := self._key_env(ref)) is not None:
                upstream["api_key_env"] = variable
            weight = ref.key("weight").number()
            if weight:
                ref.key("weight").carried("the weight among the upstreams of the backend")
                upstream["weight"] = int(weight) if weight == int(weight) else weight
            for key in ("name", "type", "provider"):
                ref.key(key).carried("needs no setting")
            yield upstream

    def _url(self, ref: Setting) -> str | None:
        base, endpoint, protocol = ref.key("base_url"), ref.key("endpoint"), ref.key("protocol")
        given = base if base.is_set else endpoint
        text = given.text()
        if text is None:
            ref.missing("there is no endpoint and no base_url; the entry is left out")
            return None
        if base.is_set:
            url = text
        else:
            scheme = protocol.value if protocol.value in ("http", "https") else "http"
            host, slash, path = text.partition("/")
            url = f"{scheme}://{host}{slash}{path}" if slash else f"{scheme}://{host}/v1"
        if self._anthropic:
            url = url.rstrip("/").removesuffix("/v1")
        try:
            url = http_url(url)
        except ValueError as error:
            given.missing(f"{error}; correct it and import again")
            return None
        given.carried(f"url: {url}")
        protocol.carried("the scheme of the url")
        return url

    def _key_env(self, ref: Setting) -> str | None:
        named, key = ref.key("api_key_env"), ref.key("api_key")
        if isinstance(named.value, str) and named.value:
            named.carried(f"api_key_env: {named.value}")
            return self._draft.need(named.value, "API key of an endpoint")
        if (variable := key.variable()) is not None:
            key.carried(f"api_key_env: {variable}")
            return self._draft.need(variable, "API key of an endpoint")
        if not key.is_set or key.value == "":
            return None
        plain = "".join(c if c.isascii() and c.isalnum() else "_" for c in self._name).upper().strip("_")
        variable = unique_name(f"{plain or 'MODEL'}_API_KEY", self._draft.variables).replace("-", "_")
        key.changed(f"nearhit keeps no keys in files: put the key into the variable {variable}")
        return self._draft.need(variable, "API key that the old file contains")

    def _retries(self) -> dict[str, Any]:
        count = self._entry.key("reliability").key("retry_count")
        retries = count.whole(0, 1000)
        if retries is None:
            return {}
        attempts = min(retries + 1, MAX_ATTEMPTS)
        count.changed(f"retries.attempts: {attempts}, the first one included; at most 20% of the calls are retried")
        return {"retries": {"attempts": attempts}}

    def _price(self) -> dict[str, Any]:
        pricing = self._entry.key("pricing")
        if pricing.key("currency").value not in (None, "USD"):
            pricing.missing(f"price is in US dollars, got {format_value(pricing.key('currency').value)}")
            return {}
        price: dict[str, float] = {}
        for key, ours in _PRICES:
            dollars = pricing.key(key).number()
            if dollars is None or (ours.startswith("cached") and dollars > price.get("input_per_million", 0)):
                continue  # `PriceConfig` refuses cached input that costs more than other input
            price[ours] = dollars
            pricing.key(key).carried(f"price.{ours}: {dollars:g}")
        if price:
            pricing.key("currency").carried("US dollars")
        return {"price": price} if price else {}
