"""What a key of some models may ask, and from where a call comes."""

from __future__ import annotations

import pytest

from gateway.errors import Forbidden
from gateway.features.kserve.grpc.port import address_of
from gateway.principal import Principal, Role

NARROW = Principal("key_a", "a", "acme", Role.USE, models=("gpt-4o-*", "text-?"))


@pytest.mark.parametrize(
    ("model", "method", "path"),
    [
        ("gpt-4o-mini", "POST", "/v1/chat/completions"),
        ("text-1", "POST", "/v1/completions"),
        (None, "GET", "/v1/models"),
        (None, "GET", "/v1/models/meta/llama-3.1"),
        (None, "HEAD", "/v2/health/ready"),
    ],
)
def test_what_a_key_of_some_models_may_ask(model: str | None, method: str, path: str) -> None:
    NARROW.check_models(() if model is None else (model,), method, path)


@pytest.mark.parametrize(
    ("model", "method", "path"),
    [
        ("gpt-4o", "POST", "/v1/chat/completions"),
        ("GPT-4O-mini", "POST", "/v1/chat/completions"),
        ("text-10", "POST", "/v1/completions"),
        ("", "POST", "/v1/chat/completions"),
        (None, "POST", "/v1/files"),
        (None, "DELETE", "/v1/models/mine"),
        (None, "GET", "/v1/models-of-others"),
        (None, "GET", "/v1/models/../files"),
        (None, "GET", "/v1/models/%2e%2E/files"),
        (None, "GET", "/v1/models/..%2ffiles"),
    ],
)
def test_what_a_key_of_some_models_may_not(model: str | None, method: str, path: str) -> None:
    with pytest.raises(Forbidden, match=r"this API key is for the models gpt-4o-\*, text-\?"):
        NARROW.check_models(() if model is None else (model,), method, path)


def test_a_key_has_to_cover_each_model_that_a_request_names() -> None:
    NARROW.check_models(("gpt-4o-mini", "text-1"), "POST", "/v1/rerank")
    with pytest.raises(Forbidden, match="not for 'other'"):
        NARROW.check_models(("gpt-4o-mini", "other"), "POST", "/v1/rerank")


@pytest.mark.parametrize(
    ("peer", "address"),
    [("ipv4:127.0.0.1:51234", "127.0.0.1"), ("ipv6:%5B::1%5D:51234", "::1"), ("ipv6:[fe80::1]:1", "fe80::1"), ("", "")],
)
def test_the_address_of_a_grpc_peer(peer: str, address: str) -> None:
    assert address_of(peer) == address
