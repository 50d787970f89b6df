"""The entries of `model_list`: each is a deployment, and those of one name are a group."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gateway.config.units import format_duration
from gateway.features.importing.document import Setting
from gateway.features.importing.draft import Draft, escape_glob, unique_name
from gateway.features.importing.litellm.auto_router import is_complexity_router
from gateway.features.importing.litellm.clouds import CLOUDS, azure_identity
from gateway.features.importing.litellm.providers import PROVIDERS, base_url, split_model, unknown_provider
from gateway.features.importing.validity import fault_of

LITELLM_KEY = "LITELLM_API_KEY"
NEVER_SET = frozenset({"content-type", "content-length", "host", "connection", "transfer-encoding"})
_SECRET_HEADER = re.compile(r"auth|key|token|secret|cookie|password|credential", re.IGNORECASE)
MAX_NAME = 512  # of a model in a match, special characters escaped
MAX_RATE = 10**8  # per minute, of one entry: with more it bounds nothing
CHAT, EMBEDDING = "chat", "embedding"

# Modes whose requests are not read for a model, with their paths.
PATHS: Mapping[str, str] = {
    "image_generation": "/v1/images/*",
    "audio_transcription": "/v1/audio/transcriptions",
    "audio_speech": "/v1/audio/speech",
    "moderation": "/v1/moderations",
    "rerank": "/v1/rerank",
}


@dataclass(frozen=True, slots=True)
class Defaults:
    """Settings that hold for all deployments unless one has its own."""

    timeout_s: float
    attempts: int | None
    concurrency: int | None
    through: str | None  # URL that gets the models of unknown providers
    verify: Setting  # `ssl_verify`
    refreshes: bool = False  # tokens of Entra ID for each deployment of Azure without a key


@dataclass(frozen=True, slots=True)
class Deployment:
    """One entry of `model_list` that a backend can call.

    `section` has the keys of its backend without address and key. `rates` are requests and tokens per minute.
    """

    place: Setting
    model_name: str
    mode: str
    section: Mapping[str, Any]
    url: str
    key_env: str | None
    order: int
    weight: float | None
    rates: Mapping[str, int]

    @property
    def share(self) -> float | None:
        """The weight in a pick: `weight`, else the rate, or None if the entry has neither."""
        rates = self.rates
        return self.weight or rates.get("requests") or rates.get("tokens")

    @property
    def address(self) -> dict[str, Any]:
        """The keys of the backend, or of one of its upstreams, that say where it is."""
        return {"url": self.url} | ({} if self.key_env is None else {"api_key_env": self.key_env})


def read_groups(root: Setting, defaults: Defaults, draft: Draft) -> dict[str, list[Deployment]]:
    """Return the deployments of each `model_name`, in the order of the file."""
    credentials = {
        entry.key("credential_name").value: entry.key("credential_values")
        for entry in root.key("credential_list").entries()
        if isinstance(entry.key("credential_name").value, str)
    }
    groups: dict[str, list[Deployment]] = {}
    secrets: dict[str, str] = {}
    for entry in root.key("model_list").entries():
        if is_complexity_router(entry):
            continue
        deployment = _EntryReader(entry, credentials, defaults, draft, secrets).read()
        if deployment is not None:
            groups.setdefault(deployment.model_name, []).append(deployment)
    for entry in root.key("credential_list").entries():
        entry.key("credential_name").carried("its values are in the backends that name it")
    return groups


def pack(deployments: Sequence[Deployment]) -> list[list[Deployment]]:
    """Return the deployments that can be upstreams of one backend: all but the address is equal."""
    packs: list[list[Deployment]] = []
    for deployment in deployments:
        for members in packs:
            if members[0].section == deployment.section and all(deployment.url != other.url for other in members):
                members.append(deployment)
                break
        else:
            packs.append([deployment])
    return packs


def backend_section(members: Sequence[Deployment]) -> dict[str, Any]:
    """Return the backend of a pack."""
    first = members[0]
    adapter, rest = {"adapter": first.section["adapter"]}, {k: v for k, v in first.section.items() if k != "adapter"}
    if len(members) == 1:
        return adapter | first.address | rest
    weights = share_weights(members)
    least = min(weights)
    upstreams = []
    for member, weight in zip(members, weights, strict=True):
        relative = min(1000.0, round(weight / least, 3))
        relative = int(relative) if relative == int(relative) else relative
        upstreams.append(member.address | ({} if relative == 1 else {"weight": relative}))
    return adapter | {"upstreams": upstreams} | rest


def share_weights(members: Sequence[Deployment]) -> list[float]:
    """Return the weights of deployments. They are equal unless each deployment has one."""
    shares = [member.share for member in members]
    return [share or 1.0 for share in shares] if all(shares) else [1.0] * len(members)


class _EntryReader:
    """Reads one entry, and reports each of its settings."""

    def __init__(
        self,
        entry: Setting,
        credentials: Mapping[str, Setting],
        defaults: Defaults,
        draft: Draft,
        secrets: dict[str, str],
    ) -> None:
        """`secrets` maps each key that the file contains to the variable that shall hold it."""
        self._entry = entry
        self._secrets = secrets
        self._params = entry.key("litellm_params")
        self._info = entry.key("model_info")
        self._defaults = defaults
        self._draft = draft
        named = self._params.key("litellm_credential_name")
        self._credential = credentials.get(named.value) if isinstance(named.value, str) else None
        if self._credential is not None:
            named.carried("its values are those of the backend")
        else:
            named.missing("no entry of credential_list has this name; correct it and import again")

    def read(self) -> Deployment | None:
        name, model = self._entry.key("model_name"), self._params.key("model")
        client_name = name.text()
        if client_name is None or name.variable() is not None or not isinstance(model.value, str):
            self._entry.missing("expected model_name and litellm_params.model as text; correct it and import again")
            return None
        if len(escape_glob(client_name)) > MAX_NAME:
            self._entry.missing(f"the entry is left out: expected a model_name of at most {MAX_NAME} characters")
            return None
        section, url, key_env = self._endpoint(client_name, model)
        if url is None:
            self._entry.missing("the entry is left out, with all of its settings")
            return None
        mode = self._mode()
        deployment = Deployment(
            place=name,
            model_name=client_name,
            mode=mode,
            section=section | dict(self._transport(url)) | dict(self._bounds()) | self._price(),
            url=url,
            key_env=key_env,
            order=self._order(),
            weight=self._weight(),
            rates=dict(self._rates()),
        )
        if fault := fault_of(backend_section([deployment])):
            self._entry.missing(f"the entry is left out, because its backend would not load: {fault}")
            return None
        return deployment

    def _endpoint(self, client_name: str, model: Setting) -> tuple[dict[str, Any], str | None, str | None]:
        """Return the section with adapter and model, the base URL and the variable of the key."""
        stated = self._params.key("custom_llm_provider")
        name, upstream_name = split_model(model.value, stated.value if isinstance(stated.value, str) else None)
        provider, cloud = PROVIDERS.get(name), CLOUDS.get(name)
        place = None if cloud is None else cloud(upstream_name, self._param, self._draft)
        if provider is None or (cloud is not None and place is None):
            if self._defaults.through is None:
                model.missing(unknown_provider(name, model.value))
                return {}, None, None
            model.changed(
                f"the old proxy at {self._defaults.through} answers, because nearhit does not know the provider"
            )
            self._draft.need(LITELLM_KEY, "key of the old proxy, for the models that still go through it")
            return {"adapter": "openai"} | _model(client_name, client_name), self._defaults.through, LITELLM_KEY
        if not upstream_name:
            model.missing("there is no name behind the provider; add it and import again")
            return {}, None, None
        stated.carried("decides the adapter and the address")
        identity: Mapping[str, Any] = {}
        if place is not None:
            upstream_name, url, identity = place
        elif (own_url := self._url(provider.url, name)) is None:
            return {}, None, None
        else:
            url = own_url
        if name == "azure" and not self._param("api_key").is_set:
            identity = azure_identity(self._param, self._draft, self._secret, refreshes=self._defaults.refreshes)
        wild = "*" in client_name
        if not wild or client_name.partition("*")[0] == upstream_name.partition("*")[0]:
            upstream = "the name that the client sends" if "*" in upstream_name else repr(upstream_name)
            meaning = f"adapter: {provider.adapter}; {upstream} goes upstream"
            model.changed(f"{meaning}; {provider.note}") if provider.note else model.carried(meaning)
        else:
            model.missing(
                "nearhit does not remove the prefix from a name that the client sends; list the names in the "
                f"backend, such as models: {{{client_name.replace('*', 'NAME')}: NAME}}"
            )
        section = {"adapter": provider.adapter} | _model(client_name, upstream_name)
        if identity and not self._param("api_key").is_set:
            return section | {"identity": dict(identity)}, url, None
        return section, url, self._key_env(provider.variable)

    def _param(self, name: str) -> Setting:
        """Return a setting of the entry, or else of its credential."""
        own = self._params.key(name)
        return own if own.is_set or self._credential is None else self._credential.key(name)

    def _url(self, default: str | None, provider: str) -> str | None:
        base = self._param("api_base")
        base = base if base.is_set else self._param("base_url")
        if not base.is_set:
            if default is None:
                self._params.key("model").missing(
                    f"{provider} needs api_base, and there is none; add it and import again"
                )
            return default
        text = base.text()
        if text is None:
            return None
        if (variable := base.variable()) is not None:
            self._draft.need(variable, "base URL of an endpoint, without a slash at its end")
        try:
            url = base_url(PROVIDERS[provider], text)
        except ValueError as error:
            base.missing(f"{error}; correct it and import again")
            return None
        base.carried(f"url: {url}")
        return url

    def _key_env(self, default: str | None) -> str | None:
        """Return the variable of the key. A key in the file never reaches the new one."""
        key = self._param("api_key")
        if not key.is_set:
            return (
                None if default is None else self._draft.need(default, "API key that LiteLLM reads on its own as well")
            )
        if key.value in ("", "none", "None", "EMPTY", "dummy", "fake", "fake-key", "not-needed"):
            key.carried("stands for no key, so the backend has none")
            return None
        return self._secret(key, "api_key_env", "API key")

    def _secret(self, setting: Setting, ours: str, what: str) -> str:
        """Return the variable of a secret, and report it. A secret in the file never reaches the new one."""
        if (variable := setting.variable()) is not None:
            setting.carried(f"{ours}: {variable}")
            return self._draft.need(variable, f"{what} of an endpoint")
        suffix = ours.rpartition(".")[2].removesuffix("_env").upper()
        variable = self._secrets.setdefault(str(setting.value), "") or unique_name(
            f"{_variable_name(self._entry.key('model_name').value)}_{_variable_name(suffix)}", self._draft.variables
        ).replace("-", "_")
        self._secrets[str(setting.value)] = variable
        setting.changed(f"nearhit keeps no keys in files: put it into the variable {variable}")
        return self._draft.need(variable, f"{what} that the old file contains")

    def _transport(self, url: str) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield the keys for headers and TLS."""
        given: dict[str, str] = {}
        for key in ("headers", "extra_headers"):
            for header in self._param(key).entries():
                if header.name.lower() in NEVER_SET:
                    header.missing("nearhit sets this header itself")
                elif _SECRET_HEADER.search(header.name) and header.value:
                    given[header.name] = f"${{{self._secret(header, f'headers.{header.name}', 'header')}}}"
                elif (text := header.text()) is not None:
                    given[header.name] = text
                    header.carried(f"headers.{header.name}, in place of the client's header")
        if given:
            yield "headers", given
        verify = self._param("ssl_verify")
        verify = verify if verify.is_set else self._defaults.verify
        if isinstance(verify.value, str) and url.startswith(("https://", "${")):
            verify.changed("tls.ca: the path counts from the folder of config.yaml")
            yield "tls", {"ca": verify.value}
        elif verify.value is False:
            verify.missing("nearhit verifies all certificates: name the private authority as tls.ca of the backend")
        else:
            verify.carried("nearhit verifies certificates")

    def _mode(self) -> str:
        mode = self._info.key("mode")
        if mode.value in (None, "chat", "completion", "responses"):
            mode.carried("each route answers all paths of its model")
            return CHAT
        if mode.value == EMBEDDING:
            mode.carried("the route has no semantic cache")
            return EMBEDDING
        if isinstance(mode.value, str) and mode.value in PATHS:
            mode.changed(
                f"the route matches the path {PATHS[mode.value]}, because nearhit does not read these requests: they "
                "reach the backend unchanged, with the model name of the client, and are not cached"
            )
            return str(mode.value)
        mode.missing("nearhit has no such path; the model answers like a chat model")
        return CHAT

    def _bounds(self) -> Iterator[tuple[str, dict[str, Any] | int]]:
        """Yield the keys for timeouts, retries and concurrency."""
        timeout = self._param("timeout")
        seconds = timeout.number()
        if seconds:
            timeout.changed(timeout_text(seconds))
        yield "timeouts", timeouts(seconds or self._defaults.timeout_s)
        retries = self._param("max_retries")
        retries = retries if retries.is_set else self._param("num_retries")
        attempts = read_attempts(retries) or self._defaults.attempts
        if attempts is not None:
            yield "retries", {"attempts": attempts}
        parallel = self._param("max_parallel_requests")
        concurrency = parallel.whole(1, 100_000)
        if concurrency is not None:
            parallel.changed("max_concurrency: further calls wait for their turn instead of getting 429")
        if concurrency or self._defaults.concurrency:
            yield "max_concurrency", concurrency or self._defaults.concurrency or 1

    def _price(self) -> dict[str, Any]:
        price: dict[str, float] = {}
        for key, ours in (
            ("input_cost_per_token", "input_per_million"),
            ("output_cost_per_token", "output_per_million"),
            ("cache_read_input_token_cost", "cached_input_per_million"),
        ):
            own = self._params.key(key)
            setting = own if own.is_set else self._info.key(key)
            dollars = setting.number()
            if ours == "cached_input_per_million" and (dollars or 0) * 1e6 > price.get("input_per_million", 0):
                continue  # `PriceConfig` refuses it
            if dollars is not None and dollars <= 1:
                price[ours] = round(dollars * 1e6, 6)
                setting.carried(f"price.{ours}: {price[ours]:g}")
        return {"price": price} if price else {}

    def _order(self) -> int:
        order = self._params.key("order")
        order = order if order.is_set else self._info.key("order")
        place = order.whole(0, 1_000_000)
        if place is not None:
            order.carried("entries of a higher order are fallbacks of those of the lowest")
        return place or 0

    def _weight(self) -> float | None:
        weight = self._params.key("weight")
        value = weight.number()
        if value is not None:
            weight.carried("the share among the entries of this name, if each of them has one")
        return value

    def _rates(self) -> Iterator[tuple[str, int]]:
        for key, ours in (("rpm", "requests"), ("tpm", "tokens")):
            rate = rate_of(self._entry, key).whole(1, MAX_RATE)
            if rate is not None:
                yield ours, rate


def rate_of(entry: Setting, key: str) -> Setting:
    """Return `rpm` or `tpm` of an entry, from one of the three places where LiteLLM reads it."""
    places = [entry.key("litellm_params").key(key), entry.key("model_info").key(key), entry.key(key)]
    return next((place for place in places if place.is_set), places[0])


def _model(client_name: str, upstream_name: str) -> dict[str, str]:
    return {} if "*" in client_name or "*" in upstream_name else {"model": upstream_name}


def _variable_name(text: object) -> str:
    name = "".join(c if c.isascii() and c.isalnum() else "_" for c in str(text)).upper().strip("_")[:64]
    return name if name and not name[0].isdigit() else f"MODEL_{name}"


def timeouts(seconds: float) -> dict[str, str]:
    """Return the timeouts of a backend for one of LiteLLM."""
    duration = format_duration(max(0.001, seconds))
    return {"first_byte": duration} if seconds == 600 else {"first_byte": duration, "total": duration}


def timeout_text(seconds: float) -> str:
    """Return how a timeout changes its meaning."""
    return f"timeouts {timeouts(seconds)}: the whole call has this time, streams included".replace("'", "")


def read_attempts(retries: Setting) -> int | None:
    """Return the attempts of a call for a number of retries, and report it. Return None if it is not
    given."""
    count = retries.whole(0, 1_000)
    if count is None:
        return None
    attempts = min(count + 1, 10)
    retries.changed(f"retries.attempts: {attempts}, the first one included; at most 20% of the calls are retried")
    return attempts
