"""The settings of LiteLLM without a counterpart, and what to do instead."""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase

from gateway.config.errors import KeyPath

UNKNOWN = "this import does not know the setting; look it up and decide whether you need it"

_AUTOMATIC = "nearhit ejects failing upstreams and tries them again on its own (circuit breakers); nothing to set"
_OBSERVING = "see docs/observing.md: metrics, OTLP traces (telemetry.traces) and the access log"
_CLIENT = "nearhit leaves requests as they are: let the client send it"
_MCP = (
    "write a backend with adapter: mcp for each server that speaks streamable HTTP, and a route with match: {path: "
    '"*/mcp"}; docs/cookbook.md has a recipe'
)
_EFFORT = "parameters of a tier set it: light: {backend: NAME, parameters: {reasoning_effort: low}}"
_AFFINITY = "session: {hold: upstream} of a route, or sticky: prefix of a backend for its prompt cache"
_INFO = "it describes the model; nearhit needs no description"
_GUARDRAILS = (
    "nearhit checks no texts: put guardrails in front of it or behind it; privacy: {pii: [...]} of a route keeps "
    "personal data out of the caches"
)
_DATABASE = "nearhit has no database of keys and spend; keys are in the store"

# Parameters of requests, which LiteLLM adds to those of the client.
_REQUEST_KEYS = (
    "temperature", "top_p", "max_completion_tokens", "seed", "stop", "merge_reasoning*", "allowed_openai_params*",
    "web_search_options", "response_format", "presence_penalty", "frequency_penalty", "extra_body*",
)  # fmt: skip

# Globs over paths with dots, list positions as *; the first that fits.
ADVICE: Mapping[str, str] = {
    "environment_variables*": "nearhit sets no variables: set them where the gateway starts",
    "include*": "included files are not read: merge them into one file and import again",
    "model_list.*.litellm_params.complexity_router_config*": (
        "the complexity is learned, without keywords, weights or plugins; choose escalate_above with nearhit simulate"
    ),
    "model_list.*.model_info.*": _INFO,
    "model_list.*.model_info": _INFO,
    "model_list.*.litellm_params.api_version": "the adapter needs no version of the API",
    "model_list.*.litellm_params.stream_timeout": "streams are not told apart: timeouts.idle bounds each pause",
    "model_list.*.litellm_params.organization": f"{_CLIENT}, as the header OpenAI-Organization",
    "model_list.*.litellm_params.cache_control*": f"{_CLIENT}: cache_control passes through",
    "model_list.*.litellm_params.reasoning_effort*": _EFFORT,
    "model_list.*.litellm_params.thinking*": f"{_EFFORT}, or thinking_budget: TOKENS",
    "model_list.*.litellm_params.max_tokens": f"{_EFFORT}, and max_tokens: TOKENS likewise",
    **{f"model_list.*.litellm_params.{key}": _CLIENT for key in _REQUEST_KEYS},
    "model_list.*.litellm_params.base_model": _INFO,
    "model_list.*.litellm_params.azure_*": "write identity: {type: azure}, or {type: oauth, ...}, of the backend",
    "model_list.*.litellm_params.aws_*": "write it into a profile of AWS, and its name as identity.profile",
    "general_settings.forward_*": "headers of the client pass through, except its credentials",
    "general_settings.enforce_user_param": "nearhit does not require the user of a request",
    "search_tools*": "nearhit has no search tools",
    "vector_store_registry*": "nearhit has no vector stores",
    "prompts*": "nearhit manages no prompts: keep them in the client",
    "model_list.*.litellm_params.tags*": "use a route with match: {headers: ...}, and let the client send the header",
    "model_list.*.litellm_params.mock_response": "use `nearhit stub` as the endpoint",
    "model_list.*.litellm_params.*budget*": "caps are on routes: limits with per: route and cost",
    "model_list.*.litellm_params.region_name": "write a backend for each region, and a route that names it",
    "model_list.*.litellm_params.silent_model": "route.shadow: {backend: NAME, share: 1%}",
    "model_list.*.litellm_params.use_in_pass_through": "unknown paths pass through to the backend of the last route",
    "credential_list.*": "only credentials that an entry of model_list names are read",
    "router_settings.routing_strategy_args*": "upstreams are chosen by the latency of their last calls; nothing to set",
    "*_settings.*allowed_fails*": _AUTOMATIC,
    "*_settings.*cooldown*": _AUTOMATIC,
    "router_settings.retry_after": "nearhit waits between attempts on its own, and obeys Retry-After",
    "router_settings.*retry_policy*": "all failures have one retries.attempts; errors of the client are not retried",
    "*_settings.max_fallbacks": "all backends of route.fallback are tried; shorten the lists",
    "*_settings.context_window_fallbacks*": (
        "a request that is too long gets the endpoint's error; use light and large in a route, where the large model "
        "has the longer context"
    ),
    "*_settings.content_policy_fallbacks*": "a refusal is an answer like any other; the client must ask another model",
    "router_settings.redis_*": "limits count in the store: set store.url to a Redis that all gateways share",
    "router_settings.cache_responses": "caches are those of litellm_settings.cache",
    "router_settings.caching_groups*": "each route has its own entries; give several models one route",
    "router_settings.enable_pre_call_check*": "nearhit does not compare prompts with context windows",
    "router_settings.optional_pre_call_checks*": _AFFINITY,
    "router_settings.*affinity*": _AFFINITY,
    "router_settings.*tag_filtering*": "use routes with match: {headers: ...}",
    "router_settings.provider_budget_config*": "caps are on routes: limits with per: route and cost",
    "router_settings.default_litellm_params*": _CLIENT,
    "router_settings.stream_timeout": "streams are not told apart: timeouts.idle bounds each pause",
    "router_settings.default_priority": "route.priority: high, normal or low",
    "*_settings.*callback*": _OBSERVING,
    "callback_settings*": _OBSERVING,
    "*_settings.langfuse*": _OBSERVING,
    "*_settings.*logging*": "no log of nearhit has texts of prompts or answers",
    "*_settings.redact*": "no log of nearhit has texts of prompts or answers",
    "*_settings.set_verbose": _OBSERVING,
    "*_settings.debug_level": _OBSERVING,
    "*_settings.json_logs": "logs are JSON lines",
    "litellm_settings.drop_params": "nearhit drops no parameters: remove them from the requests",
    "litellm_settings.enable_json_schema_validation": (
        "answers that do not fit the schema of their request are never stored; route.cascade: {check: schema} "
        "escalates them to the large model"
    ),
    "litellm_settings.modify_params": "nearhit changes no parameters",
    "litellm_settings.*guardrail*": _GUARDRAILS,
    "guardrails*": _GUARDRAILS,
    "litellm_settings.force_ipv4": "the system decides",
    "litellm_settings.ssl_verify": "nearhit always verifies certificates",
    "litellm_settings.cache_params.namespace": "tenants separate entries: give each application a tenant",
    "litellm_settings.cache_params.qdrant*": "the index is in the process, or index: {adapter: milvus, url: ...}",
    "litellm_settings.cache_params.max_connections": "nearhit sizes its connections to the store on its own",
    "litellm_settings.cache_params.ssl*": "store.tls: {ca: FILE} names the authorities to trust",
    "litellm_settings.cache_params.gcp*": "set a password of the store as store.password_env",
    "litellm_settings.cache_params.s3_*": "no store there: use the embedded one, or a Redis",
    "litellm_settings.cache_params.gcs_*": "no store there: use the embedded one, or a Redis",
    "litellm_settings.cache_params.disk*": "the embedded store is in data_dir",
    "litellm_settings.enable_redis_auth_cache": "keys are in the store, and each gateway remembers some",
    "litellm_settings.max_budget": "no cap covers all routes: limits with per: route and cost in each route",
    "litellm_settings.budget_duration": "a cap holds for a UTC day or a UTC month",
    "litellm_settings.*_key_generate_params.models*": "nearhit keys create --models",
    "litellm_settings.*_key_generate_params.duration": "nearhit keys create --expires",
    "litellm_settings.*_key_generate_params.*": "nearhit keys create sets limits, models and an end for each key",
    "litellm_settings.*internal_user*": "nearhit has tenants and keys, no users of its own",
    "litellm_settings.*team*": "a team is a tenant: nearhit keys create NAME --tenant TEAM",
    "litellm_settings.*end_user*": "limits with per: user bound the users that clients name",
    "litellm_settings.*cost*": "price of a backend is what you pay: write discounts and margins into it",
    "litellm_settings.*mcp*": _MCP,
    "general_settings.*mcp*": _MCP,
    "mcp_servers*": _MCP,
    "general_settings.custom_auth*": "auth.keys lists digests of keys, or check clients in front of the gateway",
    "general_settings.*jwt*": "auth.oidc opens the admin port; clients need keys",
    "general_settings.*oauth2*": "auth.oidc opens the admin port; clients need keys",
    "general_settings.*health_check*": "nearhit learns from the calls which upstreams fail",
    "general_settings.alert*": "deploy/ has alerting rules for Prometheus",
    "general_settings.*spend*": f"{_DATABASE}; metrics have costs by the price of each backend",
    "general_settings.database*": _DATABASE,
    "general_settings.store_model_in_db": _DATABASE,
    "general_settings.proxy_b*": _DATABASE,
    "general_settings.completion_model": "name the backend in the last route, whose match is {}",
    "general_settings.*_model": "name the backend in a route with match: {path: ...}",
    "general_settings.pass_through_endpoints*": "unknown paths pass through to the backend of the last route",
    "general_settings.max_request_size_mb": "server.max_body",
    "general_settings.max_response_size_mb": "responses have no bound; store.max_entry bounds those that are stored",
    "general_settings.allowed_ips*": "filter addresses in front of the gateway",
    "general_settings.allowed_routes*": "nearhit keys create --models limits a key to its models",
    "general_settings.ui_*": "the dashboard is on the admin port",
    "general_settings.key_management*": "let the secret manager set the variables where the gateway starts",
}


def advice(path: KeyPath) -> str:
    """Return what to do about a setting that the mapping has not read."""
    dotted = ".".join("*" if isinstance(part, int) else part for part in path)
    return next((text for glob, text in ADVICE.items() if fnmatchcase(dotted, glob)), UNKNOWN)
