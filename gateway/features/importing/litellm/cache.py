"""The cache of LiteLLM: `litellm_settings.cache` and `cache_params`, as a store and the caches of routes."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gateway.config.errors import format_value
from gateway.config.store_url import parse_store_url
from gateway.config.units import format_duration
from gateway.features.importing.document import Setting
from gateway.features.importing.draft import Draft
from gateway.features.importing.litellm.deployments import CHAT, EMBEDDING

MEMORY_TTL_S, OUTSIDE_TTL_S = 600.0, 60.0  # LiteLLM's defaults, in its process and outside
REDIS_PORT = 6379
MAX_WRONG_HITS = "1%"
VARIABLE = re.compile(r"\$\{\w+\}", re.ASCII)
VARIABLE_PORT = re.compile(r":\$\{\w+\}", re.ASCII)

_SEMANTIC = ("redis-semantic", "valkey-semantic", "qdrant-semantic")
_REDIS = ("redis", "redis-semantic", "valkey-semantic")
_CALL_TYPES = {CHAT: {"acompletion", "completion"}, EMBEDDING: {"aembedding", "embedding"}}


@dataclass(frozen=True, slots=True)
class CacheRules:
    """The caches of the routes. One that is None is off."""

    chat: Mapping[str, Any] | None
    embedding: Mapping[str, Any] | None

    def of(self, mode: str) -> Mapping[str, Any] | None:
        """Return the section `cache` for a mode of model."""
        return {CHAT: self.chat, EMBEDDING: self.embedding}.get(mode)


def read_cache(settings: Setting, draft: Draft) -> CacheRules:
    """Return the caches, and fill in the section `store`. `settings` is `litellm_settings`."""
    switch, params = settings.key("cache"), settings.key("cache_params")
    if switch.value is not True:
        switch.carried("no route has a cache")
        params.carried("has no effect without cache: true")
        return CacheRules(None, None)
    kind = params.key("type")
    name = kind.value if isinstance(kind.value, str) else "redis"
    if name in _REDIS:
        try:
            _StoreReader(params, draft).read()
        except ValueError as error:
            draft.sections.pop("store", None)
            params.missing(f"the embedded store takes the place of this one: {error}; or set store.url")
        else:
            kind.carried(f"store.url: {draft.sections['store']['url']}")
    elif name in ("local", "disk"):
        kind.carried("the embedded store, which is the default")
    elif name == "qdrant-semantic":
        kind.changed("the embedded store, and an index in the process; to share them between gateways set store.url")
    else:
        kind.missing("nearhit stores nothing there; the embedded store takes its place, or set store.url to a Redis")
    ttl = format_duration(_ttl(params, MEMORY_TTL_S if name in ("local", "disk") else OUTSIDE_TTL_S, draft))
    if params.key("mode").value == "default_off":
        switch.changed("no route has a cache, because mode is default_off")
        params.key("mode").missing(
            "no route has a cache; write a route with match: {headers: {x-cache: 'on'}} and cache: "
            f"{{exact: {{ttl: {ttl}}}}} for the clients that ask for it"
        )
        return CacheRules(None, None)
    params.key("mode").carried("caches are on")
    modes = _modes(params.key("supported_call_types"))
    switch.changed(
        "each route has an exact cache; entries are separate for each tenant (share: tenant), not shared by all"
    )
    chat: dict[str, Any] = {"exact": {"ttl": ttl}}
    if name in _SEMANTIC:
        chat["semantic"] = {"ttl": ttl, "max_wrong_hits": MAX_WRONG_HITS}
        _report_semantic(params)
    return CacheRules(chat if CHAT in modes else None, {"exact": {"ttl": ttl}} if EMBEDDING in modes else None)


def _ttl(params: Setting, default: float, draft: Draft) -> float:
    for key in ("ttl", "default_in_redis_ttl", "default_in_memory_ttl"):
        setting = params.key(key)
        seconds = setting.number()
        if seconds:
            setting.carried(f"ttl: {format_duration(seconds)} of the exact and the semantic cache")
            return seconds
    draft.differences.append(f"cache_params has no ttl: the routes have LiteLLM's default, {format_duration(default)}")
    return default


def _modes(types: Setting) -> set[str]:
    """Return the modes of models whose calls are cached. Without the setting, all."""
    if not types.is_set:
        return {CHAT, EMBEDDING}
    listed = {str(entry.value) for entry in types.entries()}
    modes = {mode for mode, names in _CALL_TYPES.items() if listed & names}
    others = sorted(listed - set().union(*_CALL_TYPES.values()))
    types.carried(f"cached: {' and '.join(sorted(modes)) or 'nothing'}")
    if others:
        types.missing(f"nearhit does not cache {', '.join(others)}")
    return modes


def _report_semantic(params: Setting) -> None:
    threshold = params.key("similarity_threshold")
    threshold.changed(
        f"max_wrong_hits: {MAX_WRONG_HITS}, a bound on wrong answers that sets the threshold; nearhit embeds with "
        "another model, so the old number would mean something else. A fixed one is min_similarity"
    )
    for key in params.entries():
        if key.name.endswith("_embedding_model"):
            key.changed("embedder: all-MiniLM-L6-v2 in the process, without a call; `nearhit model build` makes others")


def _hosts(pairs: Sequence[tuple[object, ...]]) -> str:
    """Return `HOST:PORT,HOST:PORT`. Raise `ValueError` for anything else."""
    if not pairs or not all(len(pair) == 2 and isinstance(pair[0], str) for pair in pairs):
        raise ValueError("the nodes of the Redis in cache_params are not readable, expected a host and a port for each")
    return ",".join(f"{_bracketed(str(host))}:{port}" for host, port in pairs)


def _bracketed(host: str) -> str:
    """Return a host as a URL has it: an IPv6 address stands in brackets."""
    return f"[{host}]" if ":" in host and not host.startswith("[") else host


class _StoreReader:
    """Reads the address of a Redis into the section `store`."""

    def __init__(self, params: Setting, draft: Draft) -> None:
        self._params = params
        self._draft = draft
        self._store = draft.section("store")

    def read(self) -> None:
        """Fill in the section. Raise `ValueError` if the address is not readable."""
        whole = self._first("url", "redis_url")
        if whole.is_set and (url := self._whole_url(whole)) is not None:
            self._store["url"] = url
        else:
            self._store["url"] = self._address()
            self._access()
        url = VARIABLE_PORT.sub(":80", self._store["url"])
        if not url.startswith("${"):
            parse_store_url(VARIABLE.sub("placeholder.invalid", url))

    def _first(self, *keys: str) -> Setting:
        settings = [setting for key in keys if (setting := self._params.key(key)).is_set]
        return settings[0] if settings else self._params.key(keys[0])

    def _whole_url(self, setting: Setting) -> str | None:
        if (variable := setting.variable()) is not None:
            setting.carried(f"store.url from the variable {variable}")
            return f"${{{self._draft.need(variable, 'URL of the Redis that holds the entries')}}}"
        text = setting.text()
        if text is not None and "@" in text:
            setting.changed("nearhit keeps no passwords in files: put this URL into the variable REDIS_URL")
            return f"${{{self._draft.need('REDIS_URL', 'URL of the Redis that holds the entries')}}}"
        setting.carried("store.url")
        return text

    def _address(self) -> str:
        nodes, sentinels = self._first("redis_startup_nodes", "startup_nodes"), self._params.key("sentinel_nodes")
        tls = self._tls()
        if nodes.is_set:
            nodes.carried("store.url: redis+cluster://")
            pairs = [(node.key("host").value, node.key("port").value) for node in nodes.entries()]
            return f"redis+cluster://{_hosts(pairs)}"
        if sentinels.is_set:
            service = self._params.key("service_name")
            for setting in (sentinels, service):
                setting.carried("store.url: redis+sentinel://")
            pairs = [tuple(part.value for part in node.entries()) for node in sentinels.entries()]
            return f"redis+sentinel://{_hosts(pairs)}/{service.value or 'mymaster'}"
        host, port = self._part("host", "REDIS_HOST", ""), self._part("port", "REDIS_PORT", str(REDIS_PORT))
        database = self._first("db", "redis_db")
        number = database.whole(0, 1_000_000)
        if number:
            database.carried("store.url")
        return f"redis{'s' if tls else ''}://{host}:{port}{f'/{number}' if number else ''}"

    def _tls(self) -> bool:
        ssl = self._params.key("ssl")
        if ssl.value is not True:
            ssl.carried("no TLS to the store")
            return False
        ssl.carried("TLS to the store: rediss://, or store.tls with sentinels and a cluster")
        if self._params.key("redis_startup_nodes").is_set or self._params.key("sentinel_nodes").is_set:
            self._store["tls"] = {}
        return True

    def _part(self, key: str, variable: str, default: str) -> str:
        """Return host or port. LiteLLM reads a variable for what the file does not say."""
        setting = self._first(key, f"redis_{key}")
        if setting.is_set:
            named = setting.variable()
            setting.carried("store.url")
            if named is None and isinstance(setting.value, str | int):
                return _bracketed(str(setting.value))
            if named is None:
                raise ValueError(f"expected the {key} of a Redis, got {format_value(setting.value)}")
            return f"${{{self._draft.need(named, f'{key} of the Redis that holds the entries')}}}"
        return default or f"${{{self._draft.need(variable, f'{key} of the Redis that holds the entries')}}}"

    def _access(self) -> None:
        secrets = (
            ("password", "password_env", "REDIS_PASSWORD"),
            ("sentinel_password", "sentinel_password_env", "REDIS_SENTINEL_PASSWORD"),
        )
        for key, ours, variable in secrets:
            setting = self._first(key, f"redis_{key}")
            if not setting.is_set:
                continue
            if (named := setting.variable()) is not None:
                setting.carried(f"store.{ours}: {named}")
            else:
                setting.changed(f"nearhit keeps no passwords in files: put it into the variable {variable}")
            self._store[ours] = self._draft.need(named or variable, "password of the Redis that holds the entries")
        username = self._first("username", "redis_username")
        if username.is_set and "password_env" in self._store and (name := username.text()) is not None:
            username.carried("store.username")
            self._store["username"] = name
