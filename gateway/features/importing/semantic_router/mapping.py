"""Map a configuration of vLLM Semantic Router: its decisions by difficulty become tiers, its entrypoints routes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from gateway.config.errors import format_value, unknown_name
from gateway.config.policy.parameters import EFFORTS
from gateway.features.importing.document import Document, Setting
from gateway.features.importing.draft import Draft, escape_glob
from gateway.features.importing.errors import ImportFailed
from gateway.features.importing.semantic_router.advice import TOPIC
from gateway.features.importing.semantic_router.cache import CacheDefaults, has_cache, read_cache_rule, read_store
from gateway.features.importing.semantic_router.models import Models, read_models

VERSION = "v0.3"
LEVELS = ("easy", "medium", "hard")


def map_semantic_router(document: Document) -> Draft:
    """Return the configuration. Raise `ImportFailed` if the file is of another version or has no usable model."""
    root = document.root
    if root.key("version").value != VERSION:
        raise ImportFailed(
            f"the file has version {format_value(root.key('version').value)}, expected {VERSION}; convert it with "
            "`vllm-sr config migrate --config FILE` first"
        )
    root.key("version").carried("version: 1")
    draft = Draft()
    models = read_models(root.key("providers"), draft)
    if models is None:
        raise ImportFailed("no model of providers.models can be carried over, so nothing is written")
    _listen(root.key("listeners"), draft)
    caches = read_store(root.key("global").key("stores"), draft)
    mapping = _SemanticRouterRules(draft, models, caches)
    mapping.entrypoints(root)
    for name, backend in models.backends.items():
        draft.add_route(name, {"match": {"model": escape_glob(name)}, "route": {"backend": backend}})
    draft.routes.append({"name": "default", "match": {}, **mapping.rule(root.key("routing"))})
    draft.summary += mapping.summary()
    draft.section("auth")["mode"] = "passthrough"
    draft.differences += [
        "auth.mode is passthrough: anybody may call the models, and the credentials of each client separate its stored "
        "answers; auth: {mode: keys} gives each client a key",
        "requests that name a model of the file go to it without a cache",
        "a learned score decides what is hard, and neither the old examples nor the old threshold apply: record "
        "traffic and choose escalate_above with nearhit simulate",
    ]
    return draft


def _listen(listeners: Setting, draft: Draft) -> None:
    for listener in listeners.entries():
        host, port = listener.key("address"), listener.key("port").whole(1, 65535)
        if isinstance(host.value, str) and port is not None and "server" not in draft.sections:
            draft.section("server")["listen"] = f"{host.value}:{port}"
            for key in ("name", "address", "port"):
                listener.key(key).carried(f"server.listen: {host.value}:{port}")


@dataclass(frozen=True, slots=True)
class _Target:
    """The model of a decision, with its parameters."""

    backend: str
    parameters: tuple[tuple[str, Any], ...] = ()

    @property
    def as_policy(self) -> str | dict[str, Any]:
        return {"backend": self.backend, "parameters": dict(self.parameters)} if self.parameters else self.backend


@dataclass(slots=True)
class _SemanticRouterRules:
    """Makes the rules of the policy."""

    draft: Draft
    models: Models
    caches: CacheDefaults
    decisions: int = 0
    carried: int = 0
    found_caches: int = 0
    carried_caches: int = 0

    def summary(self) -> Iterator[str]:
        """Yield how many decisions and caches are carried over, after all rules."""
        yield f"{self.carried or 'none'} of {self.decisions} decisions are carried over"
        if self.found_caches:
            yield f"{self.carried_caches or 'none'} of {self.found_caches} caches of decisions are carried over"
        else:
            yield "no decision has a cache, so none is carried over"

    def entrypoints(self, root: Setting) -> None:
        """Add a route for each name of an entrypoint, with the rule of its recipe."""
        recipes = {recipe.key("name").value: recipe for recipe in root.key("recipes").entries()}
        for recipe in recipes.values():
            recipe.key("name").carried("the routes of its entrypoints")
        rules: dict[Any, dict[str, Any]] = {}
        for entry in root.key("entrypoints").entries():
            wanted = entry.key("recipe")
            if wanted.value not in recipes:
                entry.missing(f"{unknown_name('recipe', str(wanted.value), map(str, recipes))}: no route for it")
                continue
            wanted.carried("the rule of its routes")
            if wanted.value not in rules:
                rules[wanted.value] = self.rule(recipes[wanted.value].key("routing"))
            for name in entry.key("model_names").entries():
                if isinstance(name.value, str):
                    name.carried("a route of its own")
                    self.draft.add_route(
                        name.value, {"match": {"model": escape_glob(name.value)}, **rules[wanted.value]}
                    )

    def rule(self, routing: Setting) -> dict[str, Any]:
        """Return the cache and the tiers of a section `routing`."""
        routing.key("signals").key("complexity").changed(
            "a learned score in [0, 1] without examples; escalate_above is the threshold"
        )
        chosen: dict[str, _Target] = {}
        caches: list[dict[str, Any]] = []
        decisions = sorted(routing.key("decisions").entries(), key=_priority, reverse=True)
        for decision in decisions:
            self.decisions += 1
            self.found_caches += has_cache(decision.key("plugins"))
            levels = _levels(decision)
            if levels is None:
                decision.missing(f"the decision is left out, with all of its settings: {TOPIC}")
                continue
            target = self._target(decision)
            if target is None:
                continue
            new = [level for level in levels if level not in chosen]
            chosen |= dict.fromkeys(new, target)
            for key in ("name", "priority", "tier"):
                decision.key(key).carried("the tiers of the route have its place")
            self.carried += bool(new)
            self._report_rules(decision, new)
            cache = read_cache_rule(decision.key("plugins"), self.caches, whole=len(levels) == len(LEVELS))
            caches += [] if cache is None else [cache]
        self.carried_caches += sum(cache == caches[0] for cache in caches)
        default = _Target(self.models.backends[self.models.default])
        tiers = list(dict.fromkeys(chosen.get(level, default) for level in LEVELS))
        if len(caches) > 1 and any(cache != caches[0] for cache in caches):
            self.draft.differences.append(
                "decisions of one route have different caches: the route has that of the decision of highest priority"
            )
        return ({"cache": caches[0]} if caches else {}) | {"route": self._route(tiers)}

    def _route(self, tiers: Sequence[_Target]) -> dict[str, Any]:
        if len(tiers) == 1:
            if tiers[0].parameters:
                self.draft.differences.append(
                    f"{tiers[0].backend} gets requests as the clients send them: parameters need light and large"
                )
            return {"backend": tiers[0].backend}
        return self.draft.route_by_complexity([tier.as_policy for tier in tiers])

    def _report_rules(self, decision: Setting, levels: Sequence[str]) -> None:
        rules = decision.key("rules")
        if levels:
            rules.changed(f"a tier for {' and '.join(levels)} requests, by a learned score in [0, 1]")
        else:
            rules.missing("decisions of a higher priority already cover these requests")

    def _target(self, decision: Setting) -> _Target | None:
        """Return the first model of a decision that has a backend."""
        target = None
        for ref in decision.key("modelRefs").entries():
            model = ref.key("model")
            if model.value not in self.models.backends:
                model.missing(unknown_name("model", str(model.value), self.models.backends))
            elif target is None:
                target = _Target(self.models.backends[model.value], tuple(self._parameters(ref)))
                model.carried(f"backend {target.backend}")
            else:
                ref.missing("the first model of a decision answers; others fit route.fallback, or a split with shares")
        if target is None:
            decision.missing("the decision is left out: none of its models has a backend")
        return target

    def _parameters(self, ref: Setting) -> Iterator[tuple[str, Any]]:
        reasons, effort = ref.key("use_reasoning"), ref.key("reasoning_effort")
        wanted = effort.value if effort.is_set else self.models.effort
        if reasons.value is True and wanted in EFFORTS:
            for setting in (reasons, effort):
                setting.changed(f"parameters.reasoning_effort: {wanted}; a lower effort of the client holds")
            yield "reasoning_effort", wanted
        else:
            reasons.changed("the tier sets no effort, so the one of the client or of the endpoint holds")
        tokens = ref.key("max_completion_tokens").whole(1, 10**9)
        if tokens is not None:
            ref.key("max_completion_tokens").carried(f"parameters.max_tokens: {tokens}")
            yield "max_tokens", tokens


def _priority(decision: Setting) -> float:
    value = decision.key("priority").value
    return float(value) if isinstance(value, int | float) else 0.0


def _levels(decision: Setting) -> Sequence[str] | None:
    """Return the levels of difficulty that a decision is for, or None if it depends on something else."""
    rules = decision.key("rules")
    conditions = [rules, *_below(rules)]
    leaves = [each for each in conditions if each.key("type").is_set]
    if any(each.key("operator").value not in (None, "AND", "OR") for each in conditions):
        return None
    if not leaves:
        return LEVELS
    levels = [str(leaf.key("name").value).rpartition(":")[2] for leaf in leaves]
    if any(leaf.key("type").value != "complexity" for leaf in leaves) or not set(levels) <= set(LEVELS):
        return None
    together = len(leaves) == 1 or all(each.key("operator").value in (None, "OR") for each in conditions)
    return tuple(level for level in LEVELS if level in levels) if together else None


def _below(rules: Setting) -> Iterator[Setting]:
    for condition in rules.key("conditions").entries():
        yield condition
        yield from _below(condition)
