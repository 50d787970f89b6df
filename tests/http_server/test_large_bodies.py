"""A body that takes long to parse holds nobody else up: it is parsed beside the event loop."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.calls import Call
from gateway.dialects import json_body
from gateway.dialects.json_body import check_keys
from gateway.dialects.openai import dialect
from gateway.dialects.openai.dialect import OpenAI
from gateway.errors import PayloadTooLarge
from gateway.steps.parse_and_route import LARGE_BODY
from tests.fixtures.gateways import EXACT_CACHE, TIERS, config_of, gateway_of
from tests.fixtures.upstream import Upstream

CHAT = "/v1/chat/completions"


async def test_a_large_body_is_parsed_in_another_thread_and_cached_like_any_other(
    upstream: Upstream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parse, threads = OpenAI.parse, set[int]()

    def noted(self: OpenAI, path: str, body: bytes, headers: Mapping[str, str]) -> Call:
        threads.add(threading.get_ident())
        return parse(self, path, body, headers)

    monkeypatch.setattr(OpenAI, "parse", noted)
    config = config_of(tmp_path, {"main": {"adapter": "openai", "url": upstream.url}})
    async with gateway_of(config, EXACT_CACHE) as served:
        assert (await served.chat("a short question")).status == 200
        assert threads == {threading.get_ident()}
        threads.clear()
        large = {"model": "m", "messages": [{"role": "user", "content": "word " * (LARGE_BODY // 5)}]}
        first, again = await served.post(CHAT, large), await served.post(CHAT, large)
        assert (first.status, again.status) == (200, 200)
        assert "detail=exact" in again.headers["Cache-Status"]
        assert threads, "it was parsed"
        assert threading.get_ident() not in threads


MANY = {
    "messages": {"messages": [{"role": "user", "content": "a"}] * 20_000},
    "keys": {f"key{number}": number for number in range(45_000)},
    "many keys in a body of 60 kB": {f"{number:x}": 1 for number in range(6_000)},
}


@pytest.mark.filterwarnings("ignore:Sending a large body directly:ResourceWarning")
@pytest.mark.parametrize("name", MANY)
async def test_nothing_is_read_from_a_body_of_many_parts_on_the_event_loop(
    upstream: Upstream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Neither the parse, nor the canonical form, nor the prompt that a complexity score reads."""
    threads: dict[str, set[int]] = {}

    def noting(module: Any, function: str) -> None:
        inner = getattr(module, function)

        def noted(*arguments: Any, **named: Any) -> Any:
            threads.setdefault(function, set()).add(threading.get_ident())
            return inner(*arguments, **named)

        monkeypatch.setattr(module, function, noted)

    noting(dialect, "read_object")
    noting(dialect, "_decisive")
    read_prompt = dialect.PROMPTS["chat.completions"]

    def prompt(body: Mapping[str, Any]) -> str:
        threads.setdefault("prompt", set()).add(threading.get_ident())
        return read_prompt(body)

    monkeypatch.setitem(dialect.PROMPTS, "chat.completions", prompt)
    backends = {name: {"adapter": "openai", "url": upstream.url} for name in ("light", "large")}
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}], **MANY[name]}
    async with gateway_of(config_of(tmp_path, backends), TIERS) as served:
        assert (await served.post(CHAT, json.dumps(body).encode())).status == 200
    assert threads.keys() == {"read_object", "_decisive", "prompt"}
    assert [function for function, found in threads.items() if not found or threading.get_ident() in found] == []


async def test_a_large_body_that_is_no_json_is_refused_like_a_short_one(upstream: Upstream, tmp_path: Path) -> None:
    config = config_of(tmp_path, {"main": {"adapter": "openai", "url": upstream.url}})
    async with gateway_of(config, EXACT_CACHE) as served:
        refused = await served.post(CHAT, b"{" + b" " * LARGE_BODY)
        assert refused.status == 400
        assert b"not valid JSON" in refused.body
        assert upstream.calls == []


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        (CHAT, {"messages": [{"role": "user", "content": "a"}] * 100_000}),
        (CHAT, {f"key{number}": number for number in range(100_000)}),
        ("/v1/messages", {"metadata": {f"key{number}": number for number in range(100_000)}}),
        ("/v1/feedback", {f"key{number}": number for number in range(100_000)}),
    ],
)
@pytest.mark.filterwarnings("ignore:Sending a large body directly:ResourceWarning")
async def test_a_body_of_100_000_keys_is_refused_before_it_is_parsed(
    upstream: Upstream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str, fields: dict[str, Any]
) -> None:
    parsed = list[int]()
    loads = json_body.orjson.loads
    config = config_of(tmp_path, {"main": {"adapter": "openai", "url": upstream.url}})
    async with gateway_of(config, EXACT_CACHE) as served:
        body = json.dumps({"model": "m", **fields}).encode()
        monkeypatch.setattr(json_body.orjson, "loads", lambda text: parsed.append(len(text)) or loads(text))
        refused = await served.post(path, body)
    assert refused.status == 413
    assert b"expected at most 50000 (server.max_body_keys)" in refused.body
    assert [size for size in parsed if size >= len(body)] == []
    assert upstream.calls == []


async def test_the_bound_on_keys_is_a_setting(upstream: Upstream, tmp_path: Path) -> None:
    backends, server = {"main": {"adapter": "openai", "url": upstream.url}}, {"max_body_keys": 3_000}
    async with gateway_of(config_of(tmp_path, backends, server=server), EXACT_CACHE) as served:
        found = [
            (await served.post(CHAT, {"model": "m", "messages": [{"role": "user", "content": "a"}] * count})).status
            for count in (1_000, 2_000)
        ]
    assert found == [200, 413]


@pytest.mark.parametrize(
    "text",
    [
        "12:30:15 INFO worker: started\n" * 20_000,
        '{"time": "12:30", "level": "INFO"}\n' * 20_000,
        'say "yes": no ' * 20_000,
    ],
)
def test_texts_with_many_colons_or_quotations_have_few_keys(text: str) -> None:
    check_keys(json.dumps({"messages": [{"role": "user", "content": text}]}).encode())


@given(
    st.recursive(
        st.none() | st.integers() | st.text(max_size=8),
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
        max_leaves=60,
    ),
    st.booleans(),
)
def test_no_body_has_more_keys_than_are_counted(value: Any, spaced: bool) -> None:
    text = json.dumps(value, separators=(", ", "\t:\n") if spaced else (",", ":")) + " " * 1_000
    keys = _keys(value)
    if keys:
        with pytest.raises(PayloadTooLarge):
            check_keys(text.encode(), keys - 1)


def _keys(value: Any) -> int:
    if isinstance(value, dict):
        return len(value) + sum(map(_keys, value.values()))
    return sum(map(_keys, value)) if isinstance(value, list) else 0
