"""The response cache: the plugin of a decision, and the store of all of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gateway.config.errors import format_value
from gateway.config.units import format_duration
from gateway.features.importing.document import Setting
from gateway.features.importing.draft import Draft

PLUGINS = ("response_cache", "semantic_cache", "semantic-cache")
TTL_S = 3600.0  # the router's default
MAX_WRONG_HITS = "1%"
MODES = {"exact": ("exact",), "semantic": ("semantic",), "exact_then_semantic": ("exact", "semantic")}


@dataclass(frozen=True, slots=True)
class CacheDefaults:
    """The settings of the store that hold for each plugin."""

    on: bool
    ttl_s: float


def read_store(stores: Setting, draft: Draft) -> CacheDefaults:
    """Return the defaults, and fill in the section `store`."""
    section = next((store for name in PLUGINS[:2] if (store := stores.key(name)).is_set), stores.key(PLUGINS[0]))
    enabled, kind, ttl = section.key("enabled"), section.key("backend_type"), section.key("ttl_seconds")
    enabled.carried("the routes have the caches of their decisions" if enabled.value else "no route has a cache")
    seconds = ttl.number()
    if seconds:
        ttl.carried("ttl of caches without one")
    _report_threshold(section.key("similarity_threshold"))
    if kind.value in ("redis", "valkey"):
        _read_address(section.key(str(kind.value)), kind, draft)
    elif kind.value == "memory":
        kind.changed("the embedded store, which also keeps entries over a restart")
    elif kind.is_set:
        kind.missing(
            f"nearhit stores no answers in {format_value(kind.value)}: the embedded store and an index in the process "
            "take its place; index: {adapter: milvus} keeps vectors in Milvus"
        )
    return CacheDefaults(enabled.value is not False, seconds or TTL_S)


def has_cache(plugins: Setting) -> bool:
    """Return whether a decision has a cache that is on."""
    return any(
        plugin.key("type").value in PLUGINS and plugin.key("configuration").key("enabled").value is not False
        for plugin in plugins.entries()
    )


def read_cache_rule(plugins: Setting, defaults: CacheDefaults, *, whole: bool) -> dict[str, Any] | None:
    """Return the section `cache` of a decision, or None. With `whole`, the decision covers its whole route."""
    for plugin in plugins.entries():
        kind, given = plugin.key("type"), plugin.key("configuration")
        if kind.value not in PLUGINS:
            continue
        enabled = given.key("enabled")
        if not defaults.on or enabled.value is False:
            kind.carried("no cache")
            enabled.carried("no cache")
            return None
        kind.carried("cache") if whole else kind.changed("cache, of all requests of the route")
        enabled.carried("cache")
        mode = given.key("mode")
        caches = MODES.get(str(mode.value), MODES["exact_then_semantic"])
        mode.carried(" and ".join(f"cache.{name}" for name in caches))
        if "exact" not in caches:
            mode.changed("cache.exact too: the semantic cache needs no call for a repeated request")
        ttl = given.key("ttl_seconds")
        seconds = ttl.number()
        text = format_duration(seconds or defaults.ttl_s)
        ttl.carried(f"ttl: {text}")
        rule: dict[str, Any] = {"exact": {"ttl": text}}
        if "semantic" in caches:
            rule["semantic"] = {"ttl": text, "max_wrong_hits": MAX_WRONG_HITS}
        for where in (given, given.key("semantic")):
            _report_threshold(where.key("similarity_threshold"))
        scope = given.key("scope")
        if scope.value in ("user", "tenant"):
            scope.carried(f"share: {scope.value}")
            rule["share"] = scope.value
        else:
            scope.missing("share is user, tenant or global; it stays tenant")
        given.key("request_controls").changed("Cache-Control: no-cache, no-store and max-age in a request")
        return rule
    return None


def _report_threshold(setting: Setting) -> None:
    setting.changed(
        f"max_wrong_hits: {MAX_WRONG_HITS}, a bound on wrong answers that sets the threshold; nearhit embeds with "
        "another model, so the old number would mean something else. A fixed one is min_similarity"
    )


def _read_address(section: Setting, kind: Setting, draft: Draft) -> None:
    connection = section.key("connection") if section.key("connection").is_set else section
    host, port, database = connection.key("host"), connection.key("port"), connection.key("database")
    if not isinstance(host.value, str):
        kind.missing("there is no host to connect to: set store.url")
        return
    number, place = port.whole(1, 65535) or 6379, database.whole(0, 1_000_000)
    scheme = "rediss" if connection.key("tls").key("enabled").value is True else "redis"
    draft.section("store")["url"] = url = f"{scheme}://{host.value}:{number}{f'/{place}' if place else ''}"
    for setting in (kind, host, port, database):
        setting.carried(f"store.url: {url}")
    connection.key("tls").key("enabled").carried(f"store.url: {scheme}")
    password = connection.key("password")
    if password.is_set and password.value != "":
        variable = password.variable()
        if variable is None:
            password.changed("nearhit keeps no passwords in files: put it into the variable REDIS_PASSWORD")
        else:
            password.carried(f"store.password_env: {variable}")
        draft.section("store")["password_env"] = draft.need(
            variable or "REDIS_PASSWORD", "password of the Redis that holds the entries"
        )
