"""What belongs together: the turns of a conversation, the calls of a user; and the names of models."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from gateway.dialects.model_names import ModelNames
from gateway.dialects.openai.dialect import OpenAI
from gateway.upstream.load_balancer import sticky_key

SYSTEM = {"role": "system", "content": "You are kind."}
FIRST = {"role": "user", "content": "What is a scope?"}
LATER = [{"role": "assistant", "content": "..."}, {"role": "user", "content": "And a verdict?"}]


def key(messages: list[Any], tenant: str = "acme", sticky: Any = "conversation", **fields: Any) -> bytes | None:
    body = orjson.dumps({"model": "m", "messages": messages, **fields})
    return sticky_key(OpenAI().parse("/v1/chat/completions", body, {}), tenant, sticky)


def test_every_turn_of_a_conversation_has_its_key() -> None:
    assert key([SYSTEM, FIRST]) == key([SYSTEM, FIRST, *LATER]) == key([SYSTEM, FIRST, *LATER], temperature=0.1)


@pytest.mark.parametrize(
    "other",
    [
        key([FIRST]),
        key([SYSTEM, LATER[1]]),
        key([SYSTEM, FIRST], tenant="other"),
        key([SYSTEM, FIRST], user="u1"),
        key([SYSTEM, FIRST], model="n"),
    ],
)
def test_another_opening_owner_or_model_is_another_conversation(other: bytes) -> None:
    assert other != key([SYSTEM, FIRST])


def test_a_user_is_the_same_whatever_is_asked() -> None:
    assert key([FIRST], sticky="user", user="u1") == key([SYSTEM], sticky="user", user="u1", model="n")
    assert key([FIRST], sticky="user", user="u1") != key([FIRST], sticky="user", user="u2")


def test_there_is_no_key_where_nothing_is_to_stay_or_nothing_is_kept() -> None:
    assert key([FIRST], sticky="off") is None
    embeddings = OpenAI().parse("/v1/embeddings", b'{"model": "m", "input": "hi"}', {})
    assert sticky_key(embeddings, "acme", "conversation") is None


def test_the_first_glob_that_matches_names_the_model() -> None:
    names = ModelNames("fallback", (("gpt-4o-mini*", "small"), ("gpt-4o*", "llama-70b")))
    assert [names.upstream_name(name) for name in ("gpt-4o-mini", "gpt-4o", "GPT-4o", "other")] == [
        "small",
        "llama-70b",
        "fallback",
        "fallback",
    ]
    assert names.upstream_names == ("fallback", "small", "llama-70b")
    assert ModelNames(None, (("a*", "b"),)).upstream_name("c") is None
