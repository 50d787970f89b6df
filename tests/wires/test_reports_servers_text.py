"""What public reports say of characters, headers and addresses on the way to model servers. `LOG.md` names them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gateway.upstream.base_url import BaseUrl
from tests.fixtures.gateways import BOTH_CACHES, NO_CACHE
from tests.fixtures.wire import connected
from tests.wires.scripted import DONE, STOP, Pair, before_raw, chunk, completion, data, message, sse, whole

SEPARATORS = "a\u2028b\u2029c\u0085d"
ASKED = json.dumps({"model": "m", "messages": [{"role": "user", "content": "hi"}]}).encode()


def lines_of(body: bytes) -> list[str]:
    """Split as many libraries do: at all line ends that Unicode knows."""
    return [line for line in body.decode().splitlines() if line.startswith("data: {")]


async def test_a_stream_that_the_gateway_writes_has_no_line_ends_but_its_own(pair: Pair) -> None:
    served, raw = pair
    raw.answer(whole(json.dumps(completion({"content": SEPARATORS})).encode()))
    assert (await served.chat("hi")).text == SEPARATORS
    streamed = await served.chat("hi", stream=True)
    deltas = [json.loads(line.removeprefix("data: "))["choices"] for line in lines_of(streamed.body)]
    assert "".join(choice["delta"].get("content", "") for choices in deltas for choice in choices) == SEPARATORS
    raw.answer(sse(data(chunk({"content": SEPARATORS})), STOP, DONE))
    translated = await message(served, "ho", stream=True)
    events = [json.loads(line.removeprefix("data: ")) for line in lines_of(translated.body)]
    assert "".join(event.get("delta", {}).get("text", "") for event in events) == SEPARATORS
    again = await message(served, "ho", stream=True)
    assert len(lines_of(again.body)) == len(events)


@pytest.mark.parametrize("policy", [NO_CACHE, BOTH_CACHES], ids=["uncached", "cached"])
@pytest.mark.parametrize("status", [b"307 Temporary Redirect", b"308 Permanent Redirect", b"301 Moved Permanently"])
async def test_a_redirect_within_the_server_leads_to_the_gateway(tmp_path: Path, policy: str, status: bytes) -> None:
    async with before_raw(tmp_path, policy) as (served, raw):
        origin = raw.url.removesuffix("/v1")
        for target, told in (
            (f"{origin}/v1/things/?a=1", "/v1/things/?a=1"),
            ("/v1/things/", "/v1/things/"),
            ("https://example.org/v1/things", "https://example.org/v1/things"),
        ):
            raw.answer(whole(b"", status=status, headers=b"Location: %b\r\n" % target.encode()))
            async with served.session.get(served.url + "/v1/things", allow_redirects=False) as response:
                assert (response.status, response.headers["Location"]) == (int(status[:3]), told)
            body = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
            url = served.url + "/v1/chat/completions"
            async with served.session.post(url, json=body, allow_redirects=False) as response:
                assert (response.status, response.headers["Location"]) == (int(status[:3]), told)


@pytest.mark.parametrize(
    ("url", "speaks", "told", "reached"),
    [
        ("http://h:1/openai/v1", "openai", "http://h:1/openai/v1/files/?a=b", "/v1/files/?a=b"),
        ("http://h:1/openai/v1", "openai", "/openai/docs", "/docs"),
        ("http://h:1/openai/v1", "openai", "http://h:1/login", "http://h:1/login"),
        ("http://h:1/openai/v1", "openai", "http://h:12/openai/v1/x", "http://h:12/openai/v1/x"),
        ("http://h:1", "anthropic", "http://h:1/v1/messages/", "/v1/messages/"),
        ("http://h:1/v1", "openai", "//h:1/v1/x", "//h:1/v1/x"),
        ("http://h:1/v1", "openai", "x/", "x/"),
        ("http://h:1/v1", "openai", "http://h:1/v1", "/v1"),
    ],
)
def test_a_location_is_mapped_as_paths_are(url: str, speaks: str, told: str, reached: str) -> None:
    assert BaseUrl("main", url, is_versioned=speaks == "openai").location(told) == reached


@pytest.mark.parametrize("value", ["中文模型".encode(), b"3V\xe4xel/1.5"], ids=["utf-8", "latin-1"])
async def test_a_header_beyond_ascii_goes_through_to_the_byte_both_ways(either: Pair, value: bytes) -> None:
    served, raw = either
    body = json.dumps(completion({"content": "Hello"})).encode()
    raw.answer(whole(body, headers=b"Content-Type: application/json\r\nX-Name: %b\r\n" % value))
    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: g\r\nX-App: %b\r\nUser-Agent: %b\r\n" % (value, value)
    async with connected(served.url) as wire:
        await wire.send(head + b"Content-Length: %d\r\n\r\n%b" % (len(ASKED), ASKED))
        answer = await wire.message()
        assert answer.status == 200, answer
        assert answer.all("x-name")[0].encode("latin-1") == value
        await wire.send(head + b"Content-Length: %d\r\n\r\n%b" % (len(ASKED), ASKED))
        assert (await wire.message()).status == 200
        await wire.send(b"GET /v1/things HTTP/1.1\r\nHost: g\r\nX-App: %b\r\n\r\n" % value)
        assert (await wire.message()).status == 200
    written = {value, value.decode("latin-1").encode()}  # aiohttp writes UTF-8 alone
    assert all(request.all("x-app")[0].encode("latin-1") in written for request in raw.requests)


async def test_a_model_with_a_name_beyond_ascii_is_served(pair: Pair) -> None:
    served, raw = pair
    raw.answer(whole(json.dumps(completion({"content": "Hello"})).encode()))
    for _ in range(2):
        assert (await served.chat("hi", model="中文模型")).text == "Hello"
    assert json.loads(raw.requests[0].body)["model"] == "中文模型"


async def test_a_reason_beyond_ascii_is_no_fault(either: Pair) -> None:
    served, raw = either
    said = b'{"error":{"message":"no"}}'
    raw.answer(whole(said, status=b"401 Non-Autoris\xe9"))
    answer = await served.chat("hi")
    assert (answer.status, answer.body) == (401, said)


async def test_a_stream_with_two_blocks_of_one_index_is_relayed_and_not_stored(tmp_path: Path) -> None:
    usage = {"input_tokens": 1, "output_tokens": 1}
    start = {"id": "msg_1", "type": "message", "role": "assistant", "model": "m", "content": [], "usage": usage}
    events = [
        {"type": "message_start", "message": start},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "---"}},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "thinking", "thinking": ""}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "thinking_delta", "thinking": "so"}},
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": usage},
        {"type": "message_stop"},
    ]
    async with before_raw(tmp_path, adapter="anthropic") as (served, raw):
        raw.answer(sse(*(b"event: %b\n" % event["type"].encode() + data(event) for event in events)))
        for calls in (1, 2):
            answer = await message(served, stream=True)
            assert [json.loads(line.removeprefix("data: ")) for line in lines_of(answer.body)] == events
            assert len(raw.requests) == calls


async def test_browsers_that_the_gateway_admits_are_no_matter_of_the_server(tmp_path: Path) -> None:
    """Ollama answers 403 to any `Origin` that it does not know."""
    async with before_raw(tmp_path, server={"cors": {"origins": ["chrome-extension://abc"]}}) as (served, raw):
        raw.answer(whole(json.dumps(completion({"content": "Hello"})).encode()))
        answer = await served.chat("hi", headers={"Origin": "chrome-extension://abc"})
        assert answer.headers["Access-Control-Allow-Origin"] == "chrome-extension://abc"
        assert not raw.requests[0].all("origin")
