"""The settings of vLLM Semantic Router without a counterpart, and what to do instead."""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase

from gateway.config.errors import KeyPath

UNKNOWN = "this import does not know the setting; look it up and decide whether you need it"
TOPIC = (
    "nearhit tells requests apart by difficulty, path, model, tenant and header, not by topic: set a header in your "
    "application, and write a route with match: {headers: {...}}"
)

_OBSERVING = "see docs/observing.md: metrics, OTLP traces (telemetry.traces) and the access log"
_CLIENT = "nearhit leaves requests as they are: let the client send it"
_NOTHING = "nearhit has nothing like it"

# Globs over paths with dots, list positions as *; the first that fits. Decisions of recipes have the same keys.
ADVICE: Mapping[str, str] = {
    "listeners.*.timeout": "timeouts.total of a backend bounds the whole call",
    "listeners.*.api_keys*": "auth: {mode: keys}, and nearhit keys create NAME --tenant TENANT for each client",
    "listeners.*": "nearhit listens on one address: server.listen",
    "providers.models.*.reliability*": (
        "circuit breakers and outlier ejection are on without settings; see the backend's retries and timeouts"
    ),
    "providers.models.*.reasoning*": "parameters of a tier set reasoning_effort or thinking_budget",
    "providers.models.*.external_model_ids*": "models of a backend maps names of clients to names of the endpoint",
    "providers.models.*.backend_refs.*.chat_path": "paths of clients pass through after the url",
    "providers.models.*.backend_refs.*": "keys go as Authorization, or as x-api-key to Anthropic; client headers pass",
    "providers.defaults.*reasoning*": "parameters of a tier set reasoning_effort",
    "providers.models.*.pricing*": "price is in US dollars, with input, cached input and output",
    "*modelCards*": "it describes models; nearhit needs no description",
    "evaluation*": "nearhit learns from outcomes: nearhit eval and nearhit simulate compare policies",
    "*signals.pii*": "privacy: {pii: [...]} of a route keeps such requests out of the caches, and does not route them",
    "*signals*": TOPIC,
    "*projections*": TOPIC,
    "*model_bindings*": _NOTHING,
    "*.strategy": "the first route that matches decides",
    "*decisions.*.plugins.*": (
        "a route has caches, a cascade and a shadow (route.shadow); prompts, tools and texts stay as they are"
    ),
    "*decisions.*.algorithm*": (
        "light and large choose by difficulty, latency_budget by latency, and cascade by a check of the answer"
    ),
    "*decisions.*.modelRefs.*.lora_name": "name the adapter as the model of a backend of its own",
    "*decisions.*.modelRefs.*": "a tier has a backend and parameters",
    "*decisions.*.adaptations*": "routes learn from outcomes; route.learn: off turns it off",
    "*decisions.*.emits*": "session: {hold: tier} of a route keeps a conversation to its model",
    "*decisions.*.description": "YAML comments describe a route",
    "*decisions.*": _NOTHING,
    "global.router.learning*": "session of a route keeps a conversation to its model; routes learn from outcomes",
    "global.router.fallback*": "route.fallback lists backends; circuit breakers are always on",
    "global.router.auto_model*": "the last route answers every model name that no other route has",
    "global.router": "the last route answers every other model name; see route.fallback and session of a route",
    "global.router*": _NOTHING,
    "global.services.observability*": _OBSERVING,
    "global.services.router_replay*": "record: on in a route, and nearhit simulate",
    "global.services.ratelimit*": "limits in a route, per tenant, key, user or route",
    "global.services.authz*": "auth: {mode: keys}; a key names its tenant",
    "global.services.management_api*": "server.admin with auth.admin_token_env, roles and OpenID Connect",
    "global.services.response_api*": "/v1/responses goes to the backend, which keeps the responses",
    "global.services": "see telemetry, auth and server.admin in config.yaml, and limits and record of a route",
    "global.services*": _NOTHING,
    "global.stores.*cache.embedding_model": "embedder: all-MiniLM-L6-v2 in the process, or one of nearhit model build",
    "global.stores.*cache.max_entries": "store.max_entries",
    "global.stores.*cache.eviction_policy": "entries that save least per byte leave first",
    "global.stores.*cache.polarity_guard*": "the verifier checks each neighbour, and is on by default",
    "global.stores.*cache.milvus*": "index: {adapter: milvus, url: ...} needs the extra `milvus`",
    "global.stores*": _NOTHING,
    "global.model_catalog*": "nearhit brings its embedder and its verifier; see embedder and verifier in config.yaml",
    "global*": _NOTHING,
    "recipes.*.description": "YAML comments describe a route",
}


def advice(path: KeyPath) -> str:
    """Return what to do about a setting that the mapping has not read."""
    dotted = ".".join("*" if isinstance(part, int) else part for part in path)
    return next((text for glob, text in ADVICE.items() if fnmatchcase(dotted, glob)), UNKNOWN)
