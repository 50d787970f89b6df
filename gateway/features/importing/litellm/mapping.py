"""Map a configuration of LiteLLM's proxy: router settings, groups and aliases become backends and routes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gateway.config.errors import format_value, render_path, unknown_name
from gateway.config.units import format_duration
from gateway.features.importing.document import Document, Setting
from gateway.features.importing.draft import Draft, escape_glob, split_shares
from gateway.features.importing.errors import ImportFailed
from gateway.features.importing.litellm.access import client_limits, read_access
from gateway.features.importing.litellm.auto_router import is_complexity_router, tier_models
from gateway.features.importing.litellm.cache import CacheRules, read_cache
from gateway.features.importing.litellm.deployments import (
    CHAT,
    MAX_RATE,
    PATHS,
    Defaults,
    Deployment,
    backend_section,
    pack,
    rate_of,
    read_attempts,
    read_groups,
    share_weights,
    timeout_text,
)
from gateway.features.importing.report import Outcome

TIMEOUT_S = 600.0  # LiteLLM's default
MAX_REASONS = 20  # findings that an error repeats

_STRATEGIES: Mapping[str, str] = {
    "simple-shuffle": "upstreams of a backend get calls by weight and latency, splits get fixed shares",
    "latency-based-routing": "upstreams of a backend get calls by their latency; splits get fixed shares",
    "least-busy": "upstreams of a backend get calls by their latency and calls in flight; splits get fixed shares",
    "usage-based-routing": "upstreams of a backend get calls by their latency; limits of the route bound the rates",
    "usage-based-routing-v2": "upstreams of a backend get calls by their latency; limits of the route bound the rates",
}


@dataclass(frozen=True, slots=True)
class Group:
    """The deployments of one name, as a part of a rule."""

    mode: str
    match: Mapping[str, str]
    target: str | dict[str, str]  # a backend, or a split
    reserve: tuple[str, ...]  # backends of the entries with a higher order
    limits: tuple[dict[str, Any], ...]

    @property
    def backends(self) -> list[str]:
        """All backends, in the order in which a fallback tries them."""
        return [*([self.target] if isinstance(self.target, str) else self.target), *self.reserve]


def map_litellm(document: Document, through: str | None) -> Draft:
    """Return the configuration. `through` is the URL that gets the models of unknown providers."""
    draft = Draft()
    root = document.root
    litellm, router, general = (root.key(f"{name}_settings") for name in ("litellm", "router", "general"))
    refreshes = litellm.key("enable_azure_ad_token_refresh")
    refreshes.carried("identity: {type: azure} of backends without a key")
    defaults = Defaults(
        _timeout(router, litellm),
        _attempts(router, litellm),
        _concurrency(router, general),
        through,
        litellm.key("ssl_verify"),
        refreshes.value is True,
    )
    groups = read_groups(root, defaults, draft)
    if not groups:
        faults = [f for f in document.findings.values() if f.outcome is Outcome.MISSING][:MAX_REASONS]
        reasons = [f"{fault.line}: {render_path(fault.path)}: {fault.text}" for fault in faults]
        raise ImportFailed("\n  ".join(["no model of model_list can be carried over, so nothing is written", *reasons]))
    routers = _LiteLLMRules(document, draft, groups, litellm, router).run()
    if defaults.timeout_s == TIMEOUT_S:
        draft.differences.append(
            f"backends without a timeout have LiteLLM's default, {format_duration(TIMEOUT_S)}, for the first byte"
        )
    read_access(general, draft)
    _strategy(router)
    entries, routes = list(root.key("model_list").entries()), draft.routes
    carried = sum(map(len, groups.values())) + routers
    cached = sum("cache" in route for route in routes)
    draft.summary.append(f"{carried} of {len(entries)} entries of model_list are carried over")
    draft.summary.append(f"{cached or 'none'} of {len(routes)} routes have a cache")
    return draft


def _in_force(router: Setting, litellm: Setting, key: str, other: str | None = None) -> Setting:
    """Return the setting that is in force: `router_settings` override `litellm_settings`."""
    first, second = router.key(key), litellm.key(other or key)
    if first.is_set:
        second.carried(f"has no effect: router_settings.{key} is in force")
        return first
    return second


def _timeout(router: Setting, litellm: Setting) -> float:
    setting = _in_force(router, litellm, "timeout", "request_timeout")
    seconds = setting.number()
    if not seconds:
        return TIMEOUT_S
    setting.changed(timeout_text(seconds))
    return seconds


def _attempts(router: Setting, litellm: Setting) -> int | None:
    return read_attempts(_in_force(router, litellm, "num_retries"))


def _concurrency(router: Setting, general: Setting) -> int | None:
    for setting in (router.key("default_max_parallel_requests"), general.key("max_parallel_requests")):
        if (count := setting.whole(1, 100_000)) is not None:
            setting.changed("max_concurrency of each backend: further calls wait for their turn instead of getting 429")
            return count
    return None


def _strategy(router: Setting) -> None:
    setting = router.key("routing_strategy")
    if (meaning := _STRATEGIES.get(str(setting.value))) is not None:
        setting.changed(meaning)
    else:
        setting.missing(
            f"nearhit has no strategy {format_value(setting.value)}; upstreams get calls by their latency, and light "
            "and large in a route choose by difficulty"
        )


class _LiteLLMRules:
    """Makes the rules of the policy."""

    def __init__(
        self,
        document: Document,
        draft: Draft,
        groups: Mapping[str, Sequence[Deployment]],
        litellm: Setting,
        router: Setting,
    ) -> None:
        self._document = document
        self._draft = draft
        self._litellm = litellm
        self._router = router
        checks = [entry.value for entry in router.key("optional_pre_call_checks").entries()]
        self._enforced = "enforce_model_rate_limits" in checks
        self._groups = {name: self._group(name, members) for name, members in groups.items()}
        self._caches = CacheRules(None, None)
        self._fallbacks: dict[str, list[str]] = {}
        self._common: list[dict[str, Any]] = []

    def run(self) -> int:
        """Fill in the rules, the narrow ones first and the default last. Return how many choose by complexity."""
        self._caches = read_cache(self._litellm, self._draft)
        self._common = client_limits(self._litellm)
        self._fallbacks = self._read_fallbacks()
        names = sorted(self._groups, key=lambda name: ("*" in name, -len(name) if "*" in name else 0))
        taken: set[str] = set()
        for name in names:
            group, path = self._groups[name], self._groups[name].match.get("path")
            if path is not None and path in taken:
                self._place(name).missing(
                    f"another model already has the path {path}, and these requests are not told apart by model"
                )
            elif name != "*":
                self._draft.add_route(name, {"match": dict(group.match), **self._rule(name)})
                taken |= {path} if path else set()
        for alias, name in self._aliases():
            self._draft.add_route(alias, {"match": {"model": escape_glob(alias)}, **self._rule(name)})
        routers = self._add_complexity_routers()
        self._add_default()
        return routers

    def _place(self, name: str) -> Setting:
        """Return the first entry with this name."""
        entries = self._document.root.key("model_list").entries()
        return next(key for entry in entries if (key := entry.key("model_name")).value == name)

    def _group(self, name: str, members: Sequence[Deployment]) -> Group:
        least = min(member.order for member in members)
        chosen = self._backends(name, [member for member in members if member.order == least])
        later = sorted((member for member in members if member.order > least), key=lambda member: member.order)
        reserve = self._backends(name, later)
        match = {"path": PATHS[members[0].mode]} if members[0].mode in PATHS else {"model": _glob(name)}
        for member in members:
            member.place.carried(f"backend {', '.join([*chosen, *reserve])}")
        return Group(
            members[0].mode,
            match,
            split_shares(chosen),
            tuple(backend for backend in reserve if backend not in chosen),
            tuple(self._limits(members)),
        )

    def _backends(self, name: str, members: Sequence[Deployment]) -> dict[str, float]:
        """Add the backends of deployments and return their weights."""
        weights = dict(zip(map(id, members), share_weights(members), strict=True)) if members else {}
        added: dict[str, float] = {}
        for packed in pack(members):
            backend = self._draft.add_backend("any" if name == "*" else name, backend_section(packed))
            added[backend] = added.get(backend, 0.0) + sum(weights[id(member)] for member in packed)
        return added

    def _limits(self, members: Sequence[Deployment]) -> Iterator[dict[str, Any]]:
        """Yield the limit of a route: the rates of all deployments together."""
        limit: dict[str, Any] = {"per": "route"}
        for key, ours in (("rpm", "requests"), ("tpm", "tokens")):
            rates = [member.rates[ours] for member in members if ours in member.rates]
            whole = len(rates) == len(members)
            for setting in (rate_of(_entry(member), key) for member in members if ours in member.rates):
                if not whole:
                    setting.missing("other entries of this name have no such rate: it is a weight, and bounds nothing")
                    continue
                total = min(sum(rates), MAX_RATE)
                meaning = f"limits: {{per: route, {ours}: {total}/min}}, and a burst of as many; beyond it 429"
                weighs = "" if self._enforced else ". Without enforce_model_rate_limits the old rate is only a weight"
                setting.changed(meaning + weighs)
            if whole and rates:
                limit[ours] = f"{min(sum(rates), MAX_RATE)}/min"
        if len(limit) > 1:
            yield limit

    def _rule(self, name: str) -> dict[str, Any]:
        """Return the rule of a group without its name and its match."""
        group = self._groups[name]
        cache = self._caches.of(group.mode)
        wanted = self._fallbacks.get(name, self._fallbacks.get("*", []))
        others = [backend for other in wanted if other != name for backend in self._groups[other].backends]
        fallback = [
            backend for backend in dict.fromkeys([*group.reserve, *others]) if backend not in group.backends[:1]
        ]
        limits = [*map(dict, group.limits), *map(dict, self._common)]
        return (
            ({} if cache is None else {"cache": _copy(cache)})
            | {"route": {"backend": group.target} | ({"fallback": fallback} if fallback else {})}
            | ({"limits": limits if len(limits) > 1 else limits[0]} if limits else {})
        )

    def _read_fallbacks(self) -> dict[str, list[str]]:
        """Return the groups that follow each group; `*` stands for those without their own."""
        fallbacks: dict[str, list[str]] = {}
        for section in (self._router, self._litellm):
            for entry in section.key("fallbacks").entries():
                for item in entry.entries():
                    if (names := self._known(item)) and item.name not in fallbacks:
                        fallbacks[item.name] = names
                    if item.name != "*" and item.name not in self._groups:
                        item.missing(f"{unknown_name('model', item.name, self._groups)}: no route has this fallback")
            names = self._known(section.key("default_fallbacks"))
            if names:
                fallbacks.setdefault("*", names)
        return fallbacks

    def _known(self, listed: Setting) -> list[str]:
        """Return the groups of a list of fallbacks, and report each."""
        names = []
        for entry in listed.entries():
            if isinstance(entry.value, str) and entry.value in self._groups:
                names.append(entry.value)
                backends = ", ".join(self._groups[entry.value].backends)
                entry.carried(f"route.fallback: {backends}, in this order, after 408, 429 and 5xx or no answer")
            elif isinstance(entry.value, str):
                entry.missing(f"{unknown_name('model', entry.value, self._groups)}: the fallback is left out")
            else:
                entry.missing("a fallback of nearhit is a backend and changes no messages: the fallback is left out")
        return names

    def _aliases(self) -> Iterator[tuple[str, str]]:
        """Yield each alias with its group."""
        for listed in (self._router.key("model_group_alias"), self._litellm.key("model_alias_map")):
            for alias in listed.entries():
                inner = alias.key("model")
                name = inner.value if inner.is_set else alias.value
                if not isinstance(name, str) or name not in self._groups:
                    alias.missing(f"{unknown_name('model', str(name), self._groups)}: the alias is left out")
                elif alias.name in self._groups:
                    alias.missing(
                        "a model of model_list has this name, and its route comes first: the alias is left out"
                    )
                else:
                    apart = ", whose limits count apart" if self._groups[name].limits else ""
                    alias.carried(f"a route of its own, with the rule of {name}{apart}")
                    yield alias.name, name

    def _add_complexity_routers(self) -> int:
        """Add a route with tiers for each entry that chooses by complexity, and return their number."""
        added = 0
        for entry in self._document.root.key("model_list").entries():
            if not is_complexity_router(entry):
                continue
            name, models = entry.key("model_name"), tier_models(entry, self._groups)
            if not isinstance(name.value, str) or not models:
                entry.missing("the entry is left out, because none of its tiers names a model with a backend")
                continue
            name.carried(f"a route with the tiers {', '.join(models)}")
            cache, limits = self._caches.of(CHAT), [dict(limit) for limit in self._common]
            rule = ({} if cache is None else {"cache": _copy(cache)}) | {
                "route": self._draft.route_by_complexity([self._groups[model].target for model in models])
            }
            matched = {"match": {"model": escape_glob(name.value)}}
            self._draft.add_route(name.value, matched | rule | ({"limits": limits} if limits else {}))
            added += 1
        return added

    def _add_default(self) -> None:
        """Add the last rule, which matches every request."""
        name = "*" if "*" in self._groups else next((n for n, g in self._groups.items() if g.mode == CHAT), None)
        name = name or next(iter(self._groups))
        if name != "*":
            self._draft.differences.append(
                f"a model that the file does not name gets an answer of {name}, by the last route: LiteLLM refuses it; "
                "nearhit keys create --models limits a key to its models"
            )
        self._draft.differences.append(
            "GET /v1/models lists what the endpoints of the last route list; requests on paths that nearhit does not "
            "read go there too"
        )
        self._draft.routes.append({"name": "default", "match": {}, **self._rule(name)})
        unpriced = sorted(backend for backend, section in self._draft.backends.items() if "price" not in section)
        if unpriced and any("cost" in limit for limit in self._common):
            self._draft.differences.append(
                f"caps on cost count nothing for backends without a price: {', '.join(unpriced)}"
            )


def _entry(member: Deployment) -> Setting:
    """Return the entry of a deployment, whose place is its `model_name`."""
    entries = member.place.document.root.key("model_list").entries()
    return next(entry for entry in entries if entry.path == member.place.path[:-1])


def _glob(name: str) -> str:
    """Return the glob for a `model_name`, in which LiteLLM reads only the star."""
    return "*".join(escape_glob(part) for part in name.split("*"))


def _copy(cache: Mapping[str, Any]) -> dict[str, Any]:
    return {key: dict(value) for key, value in cache.items()}
