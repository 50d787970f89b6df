"""The providers of LiteLLM whose endpoints a backend can call.

`model: PROVIDER/NAME` names them. Addresses and variables are the defaults of LiteLLM's documentation.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

from gateway.config.errors import format_value
from gateway.config.fields import http_url


@dataclass(frozen=True, slots=True)
class Provider:
    """An endpoint.

    `url` is the base URL without `api_base`. `variable` has the key without `api_key`. `suffix` is appended to
    `api_base`. `note` says how the endpoint differs from the one that LiteLLM calls.
    """

    url: str | None
    variable: str | None
    adapter: str = "openai"
    suffix: str = ""
    note: str = ""


AZURE = "/openai/v1"  # path of Azure's v1 API
_COMPATIBLE = "nearhit calls the OpenAI-compatible endpoint of this provider, not its native one"

PROVIDERS: Mapping[str, Provider] = {
    "openai": Provider("https://api.openai.com/v1", "OPENAI_API_KEY"),
    "text-completion-openai": Provider("https://api.openai.com/v1", "OPENAI_API_KEY"),
    "anthropic": Provider("https://api.anthropic.com", "ANTHROPIC_API_KEY", adapter="anthropic"),
    "azure": Provider(
        None, "AZURE_API_KEY", suffix=AZURE, note="nearhit calls Azure's v1 API, which needs no api_version"
    ),
    "bedrock": Provider(None, None, adapter="bedrock"),
    "cerebras": Provider("https://api.cerebras.ai/v1", "CEREBRAS_API_KEY"),
    "custom_openai": Provider(None, "OPENAI_API_KEY"),
    "deepinfra": Provider("https://api.deepinfra.com/v1/openai", "DEEPINFRA_API_KEY"),
    "deepseek": Provider("https://api.deepseek.com/v1", "DEEPSEEK_API_KEY"),
    "fireworks_ai": Provider("https://api.fireworks.ai/inference/v1", "FIREWORKS_API_KEY"),
    "gemini": Provider("https://generativelanguage.googleapis.com/v1beta/openai", "GEMINI_API_KEY", note=_COMPATIBLE),
    "groq": Provider("https://api.groq.com/openai/v1", "GROQ_API_KEY"),
    "hosted_vllm": Provider(None, None),
    "litellm_proxy": Provider(None, "LITELLM_PROXY_API_KEY"),
    "lm_studio": Provider(None, None),
    "mistral": Provider("https://api.mistral.ai/v1", "MISTRAL_API_KEY"),
    "nvidia_nim": Provider("https://integrate.api.nvidia.com/v1", "NVIDIA_NIM_API_KEY"),
    "ollama": Provider("http://localhost:11434/v1", None, suffix="/v1", note=_COMPATIBLE),
    "ollama_chat": Provider("http://localhost:11434/v1", None, suffix="/v1", note=_COMPATIBLE),
    "openai_like": Provider(None, "OPENAI_LIKE_API_KEY"),
    "openrouter": Provider("https://openrouter.ai/api/v1", "OPENROUTER_API_KEY"),
    "perplexity": Provider("https://api.perplexity.ai", "PERPLEXITYAI_API_KEY"),
    "sambanova": Provider("https://api.sambanova.ai/v1", "SAMBANOVA_API_KEY"),
    "together_ai": Provider("https://api.together.xyz/v1", "TOGETHERAI_API_KEY"),
    "vertex_ai": Provider(None, None, note=_COMPATIBLE),
    "xai": Provider("https://api.x.ai/v1", "XAI_API_KEY"),
}

# Names without a provider, for which LiteLLM has a table of models.
_BARE = (
    (re.compile(r"(gpt|chatgpt|text-embedding|o[1-9]|dall-e|whisper|tts|omni-moderation|ft:gpt)[-:\w.]*"), "openai"),
    (re.compile(r"claude[-\w.@]*"), "anthropic"),
)


def split_model(model: str, stated: str | None) -> tuple[str, str]:
    """Return provider and name of `PROVIDER/NAME`. `stated` is `custom_llm_provider`. Without both, guess by name."""
    head, slash, rest = model.partition("/")
    if stated is not None:
        return stated, rest if slash and head == stated else model
    if slash:
        return head, rest
    return next((provider for pattern, provider in _BARE if pattern.fullmatch(model)), ""), model


def base_url(provider: Provider, api_base: str) -> str:
    """Return the base URL for an `api_base`, which may be `${NAME}`. Raise `ValueError`.

    Only the path is looked at: the host of an Azure resource may begin with `openai`.
    """
    if api_base.startswith("${"):
        return api_base + provider.suffix
    url = urlsplit(http_url(_without_query(api_base, provider), extra="api_key_env"))
    path = url.path.rstrip("/")
    if provider.adapter == "anthropic":
        path = path.removesuffix("/messages").removesuffix("/v1")
    else:
        for operation in ("/chat/completions", "/completions", "/embeddings"):
            path = path.removesuffix(operation)
        segments = path.split("/")
        if provider.suffix == AZURE and "openai" in segments:  # an address of one deployment, or of the API itself
            path = "/".join(segments[: segments.index("openai")])
        path = path.removesuffix(provider.suffix) + provider.suffix
    return url._replace(path=path).geturl()


def _without_query(url: str, provider: Provider) -> str:
    """Return the URL without the version that Azure's v1 API does not need. Raise `ValueError` for another query.

    A query may contain a key, so it is not repeated.
    """
    base, mark, query = url.partition("?")
    if mark and not (provider.suffix == AZURE and re.fullmatch(r"(api-version=[\w.-]*)?", query)):
        raise ValueError("the URL has a query, which no backend sends, expected a URL such as https://host/v1")
    return base


def unknown_provider(provider: str, model: str) -> str:
    """Return the advice for a model that no backend can call."""
    if provider == "triton":
        return (
            "the model is left out; write a backend with adapter: triton and url: grpc://HOST:PORT, or adapter: kserve"
        )
    if provider == "auto_router":
        return (
            "the model is left out: nearhit chooses by difficulty itself; write a route with match: {model: NAME}, and "
            "light and large, or tiers, with escalate_above"
        )
    if provider in ("bedrock", "vertex_ai"):
        return (
            f"nearhit has no protocol for this model of {provider}; it is left out. Send it to the old proxy with "
            "--through URL"
        )
    named = f"the provider {format_value(provider)}" if provider else f"a provider for {format_value(model)}"
    return (
        f"nearhit does not know {named}; the model is left out. Give an OpenAI-compatible endpoint as openai/NAME with "
        "api_base, or send the model to the old proxy with --through URL"
    )
