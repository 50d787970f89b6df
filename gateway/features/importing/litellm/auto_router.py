"""LiteLLM's complexity router: an entry of `model_list` whose tiers name other entries."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from gateway.config.errors import format_value, unknown_name
from gateway.features.importing.document import Setting

COMPLEXITY_ROUTER = "auto_router/complexity_router"
TIERS = ("SIMPLE", "MEDIUM", "COMPLEX", "REASONING")  # lightest first


def is_complexity_router(entry: Setting) -> bool:
    """Return whether an entry of `model_list` chooses among others by the complexity of a request."""
    return bool(entry.key("litellm_params").key("model").value == COMPLEXITY_ROUTER)


def tier_models(entry: Setting, known: Collection[str]) -> list[str]:
    """Return the models of the tiers, lightest first and each once, and report each. None may be known."""
    params = entry.key("litellm_params")
    config = params.key("complexity_router_config")
    models = dict.fromkeys(model for tier in TIERS for model in _models_of(config.key("tiers").key(tier), known))
    default = next(
        (d for d in (params.key("complexity_router_default_model"), config.key("default_model")) if d.is_set), None
    )
    if default is not None:
        default.changed("each request has a complexity, so no default is needed")
    params.key("model").changed("a route that chooses by a learned complexity in [0, 1]; escalate_above has its steps")
    config.key("classifier_type").changed("a learned score, without a call")
    return list(models)


def _models_of(tier: Setting, known: Collection[str]) -> Iterator[str]:
    """Yield the model of a tier, which is a name or a list of names of which the first counts."""
    names = list(tier.entries()) if isinstance(tier.value, list) else [tier]
    for at, name in enumerate(names):
        if name.value in known:
            if at == 0:
                name.carried("a tier of the route")
                yield str(name.value)
            else:
                name.missing("the first model of a tier answers; write shares such as {a: 50%, b: 50%} to use both")
        elif isinstance(name.value, str):
            name.missing(f"{unknown_name('model', name.value, known)}: it is left out of the tiers")
        elif name.is_set:
            name.missing(f"expected the name of a model, got {format_value(name.value)}; it is left out of the tiers")
