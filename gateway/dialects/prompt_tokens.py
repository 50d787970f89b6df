"""Read the input tokens of an answer, and those of them that came from the backend's prompt cache. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from gateway.calls import Call
from gateway.dialects.json_body import count_of, load_json
from gateway.dialects.openai.answers import cached_tokens, usage_of

# OpenAI's rule of thumb for English text. It counts bytes, so that other scripts are not underestimated much.
BYTES_A_TOKEN = 4

USAGE, USAGE_METADATA = b'"usage"', b'"usageMetadata"'  # the second one is Gemini's

MAX_READ = 256 * 1024  # bytes of a body that is parsed for its usage; more would take milliseconds


def input_tokens(call: Call) -> int:
    """Estimate the input tokens, at least 1.

    Images and tools are not counted; the backend's own count corrects that.
    """
    texts = call.questions if call.embeds else (call.prompt,)
    return max(1, sum(len(text.encode("utf-8", "surrogatepass")) for text in texts) // BYTES_A_TOKEN)


class PromptTokens(NamedTuple):
    """The input tokens of a call. `cached` are those of `total` that the prompt cache supplied."""

    total: int = 0
    cached: int = 0

    def merged(self, other: PromptTokens) -> PromptTokens:
        """Return the larger counts: a stream reports its usage in parts, or as a running total."""
        return PromptTokens(max(self.total, other.total), max(self.cached, other.cached))


NO_TOKENS = PromptTokens()


def prompt_tokens(data: bytes) -> PromptTokens:
    """Return the input tokens that a whole body or one event reports, in any dialect.

    The result is zero if it reports none or is larger than `MAX_READ`.
    """
    if (USAGE not in data and USAGE_METADATA not in data) or len(data) > MAX_READ:
        return NO_TOKENS
    try:
        body = load_json(data)
        metadata = body.get("usageMetadata")
        if isinstance(metadata, Mapping):
            total, cached = (count_of(metadata.get(key)) for key in ("promptTokenCount", "cachedContentTokenCount"))
            return PromptTokens(max(0, total), min(max(0, cached), max(0, total)))
        usage = next((usage for holder in _holders(body) if (usage := usage_of(holder))), {})
        if "prompt_tokens" in usage:
            total, cached = count_of(usage["prompt_tokens"]), cached_tokens(usage)
        else:
            total, _ = count_tokens(usage)
            cached = count_of(usage.get("cache_read_input_tokens")) or cached_tokens(usage)
    except (ValueError, TypeError, AttributeError):
        return NO_TOKENS
    return PromptTokens(total, min(cached, total))


def count_tokens(usage: Mapping[str, Any]) -> tuple[int, int]:
    """Return (input tokens, output tokens) of a usage in Anthropic's form. Tokens read from or written to the prompt
    cache count as input."""
    read = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")
    return sum(count_of(usage.get(key)) for key in read), count_of(usage.get("output_tokens"))


def _holders(body: Any) -> list[Mapping[str, Any]]:
    """Return the objects that may have the usage: the body, Anthropic's first event, and the last one of Responses."""
    return [value for value in (body, body.get("message"), body.get("response")) if isinstance(value, Mapping)]
