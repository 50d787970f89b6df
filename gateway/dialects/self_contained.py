"""Calls that no dialect reads, although each is complete in itself. Pure.

Like a chat, such a call names nothing that the backend made, and it makes nothing that a later call names. So another
upstream or backend can answer it as well. Other requests that pass through may belong to one backend, as files, batches
and conversations do.
"""

from __future__ import annotations

PATHS = frozenset(
    {
        # OpenAI
        "/v1/audio/speech",
        "/v1/audio/transcriptions",
        "/v1/audio/translations",
        "/v1/images/edits",
        "/v1/images/generations",
        "/v1/images/variations",
        "/v1/moderations",
        "/v1/responses/input_tokens",
        # Anthropic
        "/v1/messages/count_tokens",
        # Cohere, Jina, Mistral, and model servers with their paths
        "/rerank",
        "/v1/rerank",
        "/v2/rerank",
        "/v1/classify",
        "/v1/fim/completions",
        "/v1/ocr",
        "/v1/pooling",
        "/v1/score",
        "/tokenize",
        "/detokenize",
    }
)


# Such calls make nothing either. But what they return is encrypted, and only the backend that has made it can read it.
OF_ONE_BACKEND = frozenset({"/v1/responses/compact"})


def may_be_repeated(method: str, path: str) -> bool:
    """Return whether a backend that has answered such a call with an error may be asked again."""
    return method == "POST" and (path in PATHS or path in OF_ONE_BACKEND)


def is_self_contained(method: str, path: str) -> bool:
    return method == "POST" and path in PATHS
