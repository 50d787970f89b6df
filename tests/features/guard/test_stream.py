"""Streams of a guarded route: held by windows, changed on the way, and ended where the guard says so."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from itertools import cycle
from typing import Any

import pytest
from aiohttp import web
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.calls import Call
from gateway.dialects.known import find_dialect
from gateway.errors import AnswerWithheld, ContentBlocked
from gateway.features.guard import stream as guard_stream
from gateway.features.guard.question import ALLOWED, Content, Outcome, Verdict
from gateway.features.guard.stream import CONTEXT, HOLDBACK, WINDOW, GuardedEvents
from gateway.messages import Event
from gateway.streams import BufferedStream, ObservedStream, as_observed
from tests.features.guard.conftest import Guarded
from tests.fixtures.upstream import chunk, frame, stream
from tests.fixtures.waiting import until

MESSAGES = {"model": "m", "messages": [{"role": "user", "content": "q"}]}
BODIES = {
    "/v1/chat/completions": {**MESSAGES, "stream": True},
    "/v1/messages": {**MESSAGES, "max_tokens": 9, "stream": True},
    "/v1/responses": {"model": "m", "input": "q", "stream": True},
    "/v1/completions": {"model": "m", "prompt": "q", "stream": True},
}


def call_of(path: str) -> Call:
    dialect = find_dialect("POST", path)
    assert dialect is not None
    return dialect.parse(path, json.dumps(BODIES[path]).encode(), {})


def whole_of(path: str, text: str) -> bytes:
    """Return a whole answer with a text."""
    if path == "/v1/messages":
        answer: dict[str, Any] = {
            "id": "m1", "type": "message", "role": "assistant", "model": "m", "stop_reason": "end_turn",
            "content": [{"type": "text", "text": text}], "usage": {"input_tokens": 1, "output_tokens": 1},
        }  # fmt: skip
    elif path == "/v1/responses":
        part = {"type": "output_text", "text": text, "annotations": []}
        item = {"id": "i1", "type": "message", "role": "assistant", "status": "completed", "content": [part]}
        answer = {
            "id": "r1",
            "object": "response",
            "created_at": 1,
            "status": "completed",
            "model": "m",
            "output": [item],
        }
    elif path == "/v1/completions":
        choice = {"index": 0, "text": text, "logprobs": None, "finish_reason": "stop"}
        answer = {"id": "c1", "object": "text_completion", "created": 1, "model": "m", "choices": [choice]}
    else:
        message = {"role": "assistant", "content": text}
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": "stop"}
        answer = {"id": "c1", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice]}
    return json.dumps(answer).encode()


class Guard:
    """A guard in memory, which notes what it is asked."""

    def __init__(self) -> None:
        self.texts: list[list[str]] = []
        self.calls: list[Sequence[Any]] = []
        self.unread = 0

    async def __call__(self, content: Content | None) -> Verdict | None:
        if content is None:
            self.unread += 1
            raise ContentBlocked("unread")
        self.texts.append([*content.texts])
        self.calls.append(content.tool_calls)
        if any("forbidden" in text for text in content.texts):
            raise ContentBlocked("it says the word")
        changed = tuple(text.replace("secret", "[gone]") for text in content.texts)
        return ALLOWED if changed == tuple(content.texts) else Verdict(Outcome.REPLACE, texts=changed)


def guarded_stream(events: Sequence[Event], call: Call, guard: Guard) -> ObservedStream[Event]:
    return ObservedStream(GuardedEvents(as_observed(BufferedStream(tuple(events))), call, guard))


async def read(flow: ObservedStream[Event]) -> list[Event]:
    return [event async for event in flow]


def text_in(events: Sequence[Event]) -> str:
    """Return the text of the deltas of chat events."""
    values = [json.loads(event.data) for event in events if event.data.startswith(b"{")]
    return "".join(choice["delta"].get("content") or "" for value in values for choice in value["choices"])


def chat_events(*texts: str) -> list[Event]:
    deltas = [{"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": None}]} for text in texts]
    return [*(Event(json.dumps(delta).encode()) for delta in deltas), Event(b"[DONE]")]


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize("times", [1, 200])
async def test_a_change_reaches_every_event_that_repeats_the_text(path: str, times: int) -> None:
    call, guard = call_of(path), Guard()
    text = " ".join(["a secret and more"] * times)
    events = call.dialect.events(call, whole_of(path, text))
    found = await read(guarded_stream(events, call, guard))
    assert not any(b"secret" in event.data for event in found)
    whole = call.dialect.whole(call, [event.data for event in found])
    assert text.replace("secret", "[gone]") in json.dumps(json.loads(whole))
    assert guard.unread == 0


@pytest.mark.parametrize("path", BODIES)
async def test_what_the_guard_allows_passes_byte_for_byte(path: str) -> None:
    call, guard = call_of(path), Guard()
    events = call.dialect.events(call, whole_of(path, "one two three " * 300))
    assert await read(guarded_stream(events, call, guard)) == [*events]


async def test_a_short_answer_is_judged_once() -> None:
    guard = Guard()
    await read(guarded_stream(chat_events("Hello", " there"), call_of("/v1/chat/completions"), guard))
    assert guard.texts == [["Hello there"]]


async def test_a_long_answer_is_judged_in_windows_and_as_a_whole() -> None:
    guard, words = Guard(), [f"word{i} " for i in range(1000)]
    await read(guarded_stream(chat_events(*words), call_of("/v1/chat/completions"), guard))
    *windows, (whole,) = guard.texts
    assert whole == "".join(words)
    assert len(windows) == len(whole) // WINDOW
    assert all(len(window[0]) <= CONTEXT + WINDOW + HOLDBACK + 16 for window in windows)


async def test_what_crosses_the_border_of_two_windows_is_changed() -> None:
    for shift in range(0, 24, 3):
        pieces = ["x" * (WINDOW - shift), "the", "secret", "word", "y" * WINDOW]
        events = chat_events(*(piece + " " for piece in pieces))
        split = [event for each in events for event in halves(each)]
        found = await read(guarded_stream(split, call_of("/v1/chat/completions"), Guard()))
        assert text_in(found) == " ".join(pieces).replace("secret", "[gone]") + " "


def halves(event: Event) -> list[Event]:
    """Return an event with each of its texts cut into pieces of three characters."""
    if not event.data.startswith(b"{"):
        return [event]
    text = text_in([event])
    return chat_events(*(text[i : i + 3] for i in range(0, len(text), 3)))[:-1]


class Batches:
    """A source whose batches have the given sizes, again and again."""

    can_notify, drained, complete = False, True, False

    def __init__(self, events: Sequence[Event], sizes: Sequence[int]) -> None:
        self._events, self._sizes, self._batch = [*events], cycle(sizes), None

    def take(self) -> Sequence[Event] | None:
        batch, self._batch = self._batch, None
        self.complete = self.complete or any(event.data == b"[DONE]" for event in batch or ())
        return batch

    def is_finished(self) -> bool:
        return False

    async def wait(self) -> None:
        size = next(self._sizes)
        self._batch, self._events = self._events[:size], self._events[size:]

    def subscribe(self, wake: Callable[[], None] | None) -> None:
        raise NotImplementedError


@given(
    words=st.lists(st.sampled_from(["secret", "a", "harmless", "x" * 30]), min_size=1, max_size=400),
    cuts=st.lists(st.sampled_from([1, 2, 3, 5, 20, 200]), min_size=1, max_size=4),
    sizes=st.lists(st.sampled_from([1, 3, 10, 50]), min_size=1, max_size=4),
    choices=st.integers(1, 3),
)
@settings(max_examples=60)
def test_a_word_is_changed_wherever_pieces_batches_and_windows_cut_it(
    words: list[str], cuts: list[int], sizes: list[int], choices: int
) -> None:
    text, rest, length = " ".join(words), list[str](), cycle(cuts)
    while (at := sum(map(len, rest))) < len(text):
        rest.append(text[at : at + next(length)])
    events = [
        Event(json.dumps({"choices": [{"index": i, "delta": {"content": piece}}]}).encode())
        for piece in rest
        for i in range(choices)
    ]
    source = ObservedStream(Batches([*events, Event(b"[DONE]")], sizes))
    flow = ObservedStream(GuardedEvents(source, call_of("/v1/chat/completions"), Guard()))
    found = [json.loads(event.data)["choices"][0] for event in asyncio.run(read(flow))[:-1]]
    for i in range(choices):
        shown = "".join(choice["delta"]["content"] for choice in found if choice["index"] == i)
        assert shown == text.replace("secret", "[gone]")


async def test_a_block_ends_the_stream_and_nothing_of_its_window_passes() -> None:
    events = chat_events("a" * WINDOW, "b" * WINDOW, "so forbidden", "c")
    flow, found = guarded_stream(events, call_of("/v1/chat/completions"), Guard()), list[Event]()
    with pytest.raises(AnswerWithheld, match="it says the word"):
        async for event in flow:
            found.append(event)
    assert set(text_in(found)) == {"a"}


async def test_a_guard_that_changes_what_was_sent_ends_the_stream() -> None:
    class Late(Guard):
        async def __call__(self, content: Content | None) -> Verdict | None:
            verdict = await super().__call__(content)
            assert content is not None
            changed = "A" + content.texts[0][1:]
            return Verdict(Outcome.REPLACE, texts=(changed,)) if len(self.texts) > 2 else verdict

    events = chat_events(*("a" * 100 for _ in range(30)))
    with pytest.raises(AnswerWithheld, match="that was sent already"):
        await read(guarded_stream(events, call_of("/v1/chat/completions"), Late()))


async def test_a_tool_call_is_held_until_the_whole_answer_is_judged() -> None:
    function = {"index": 0, "id": "c1", "type": "function", "function": {"name": "rm", "arguments": '{"a": "forb'}}
    deltas: list[dict[str, Any]] = [
        {"role": "assistant", "content": "Well."},
        {"tool_calls": [function]},
        {"tool_calls": [{"index": 0, "function": {"arguments": 'idden"}'}}]},
    ]
    values = [{"choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas]
    values.append({"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]})
    events = [*(Event(json.dumps(value).encode()) for value in values), Event(b"[DONE]")]
    guard = Guard()
    assert await read(guarded_stream(events, call_of("/v1/chat/completions"), guard)) == events
    (calls,) = guard.calls
    assert calls[0]["function"] == {"name": "rm", "arguments": '{"a": "forbidden"}'}


async def test_an_event_that_is_no_json_is_not_read() -> None:
    events = [*chat_events("a")[:-1], Event(b"<html>"), Event(b"[DONE]")]
    with pytest.raises(AnswerWithheld, match="unread"):
        await read(guarded_stream(events, call_of("/v1/chat/completions"), Guard()))


async def test_closing_early_ends_the_source() -> None:
    closed = asyncio.Event()

    class Endless:
        def __aiter__(self) -> Endless:
            return self

        async def __anext__(self) -> Event:
            await asyncio.Event().wait()
            raise StopAsyncIteration

        async def aclose(self) -> None:
            closed.set()

    flow = ObservedStream(GuardedEvents(as_observed(Endless()), call_of("/v1/chat/completions"), Guard()))
    reading = asyncio.create_task(anext(flow))
    await asyncio.sleep(0)
    reading.cancel()
    await asyncio.wait({reading})
    await flow.aclose()
    assert closed.is_set()


# At the socket.


async def lines_of(guarded: Guarded, path: str, body: dict[str, Any], route: str = "answers") -> tuple[int, list[str]]:
    answer = await guarded.post(path, body, route)
    return answer.status, [line for line in answer.body.decode().splitlines() if line]


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages", "/v1/responses"])
async def test_a_block_before_the_first_byte_is_an_error_with_a_status(guarded: Guarded, path: str) -> None:
    body = json.loads(json.dumps(BODIES[path]).replace('"q"', '"short and forbidden"'))
    guarded.upstream.answer = speaking(path, "short and forbidden")
    status, (line,) = await lines_of(guarded, path, body)
    assert status == 400
    assert "it says the word" in json.loads(line)["error"]["message"]


@pytest.mark.asyncio(loop_scope="module")
async def test_a_block_after_the_first_byte_ends_the_stream_with_the_error_of_the_dialect(guarded: Guarded) -> None:
    async def speak(request: web.Request, call: dict[str, Any]) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        before = len(guarded.questions("response"))
        for _ in range(100):
            await response.write(chunk(call, {"content": " harmless"}))
        await until(lambda: len(guarded.questions("response")) > before)
        await response.write(chunk(call, {"content": " forbidden"}, "stop") + b"data: [DONE]\n\n")
        return response

    guarded.upstream.answer = speak
    body = {**MESSAGES, "stream": True, "seed": 1}
    for _ in range(2):
        status, lines = await lines_of(guarded, "/v1/chat/completions", body)
        assert status == 200
        error = json.loads(lines[-1].removeprefix("data: "))["error"]
        assert (error["type"], "it says the word" in error["message"]) == ("content_blocked", True)
        assert "harmless" in "".join(lines)
        assert "forbidden" not in "".join(lines)
    assert len(guarded.upstream.calls) == 2, "a blocked answer is not stored"


@pytest.mark.asyncio(loop_scope="module")
async def test_a_changed_stream_is_stored_as_it_was_sent(guarded: Guarded) -> None:
    guarded.upstream.answer = speaking("/v1/chat/completions", "it is a secret to all")
    body = {**MESSAGES, "seed": 2}
    status, lines = await lines_of(guarded, "/v1/chat/completions", {**body, "stream": True})
    assert status == 200
    assert "secret" not in "".join(lines)
    again = await guarded.post("/v1/chat/completions", body, "answers")
    assert again.cache_status.startswith("nearhit; hit")
    assert again.text == "it is a [gone] to all"


@pytest.mark.asyncio(loop_scope="module")
async def test_a_stream_without_a_verdict_passes_if_the_guard_is_open_and_is_not_stored(guarded: Guarded) -> None:
    async def refuse(_: web.Request, __: dict[str, Any]) -> web.StreamResponse:
        return web.Response(status=500)

    guarded.guard.answer = refuse
    for route, expected in (("answers", 503), ("open", 200)):
        status, lines = await lines_of(guarded, "/v1/chat/completions", {**MESSAGES, "stream": True, "seed": 3}, route)
        assert status == expected
    assert lines[-1] == "data: [DONE]"
    calls = len(guarded.upstream.calls)
    await lines_of(guarded, "/v1/chat/completions", {**MESSAGES, "stream": True, "seed": 3}, "open")
    assert len(guarded.upstream.calls) == calls + 1


@pytest.mark.asyncio(loop_scope="module")
async def test_a_slow_stream_passes_before_a_window_is_full(guarded: Guarded) -> None:
    seen, more = asyncio.Event(), asyncio.Event()

    async def slow(request: web.Request, call: dict[str, Any]) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await response.write(chunk(call, {"role": "assistant", "content": "first words"}))
        await more.wait()
        await response.write(chunk(call, {"content": " and the last"}, "stop") + b"data: [DONE]\n\n")
        return response

    guarded.upstream.answer = slow
    url, body = guarded.served.url + "/v1/chat/completions", {**MESSAGES, "stream": True, "seed": 4}
    async with guarded.served.session.post(url, json=body, headers={"x-route": "answers"}) as response:
        async for line in response.content:
            if b"first words" in line:
                seen.set()
                more.set()
    assert seen.is_set()


def speaking(path: str, text: str) -> Callable[[web.Request, dict[str, Any]], Any]:
    """Return the script of a backend that speaks the dialect of a path, or chat for one that is translated to it."""

    async def answer(request: web.Request, call: dict[str, Any]) -> web.StreamResponse:
        if request.path == "/v1/chat/completions":
            return await stream(request, call, text)
        spoken = call_of(path)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for event in spoken.dialect.events(spoken, whole_of(path, text)):
            await response.write(frame(json.loads(event.data)))
        return response

    return answer


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("word", ["harmless", "forbidden"])
async def test_a_stream_that_is_held_for_long_begins_all_the_same(
    guarded: Guarded, monkeypatch: pytest.MonkeyPatch, word: str
) -> None:
    """A balancer in front would close a connection that is silent while the arguments of a tool call arrive."""
    monkeypatch.setattr(guard_stream, "BEGIN_S", 0.05)
    begun = asyncio.Event()

    async def speak(request: web.Request, call: dict[str, Any]) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        function = {"name": "write", "arguments": word}
        await response.write(
            chunk(call, {"tool_calls": [{"index": 0, "id": "c", "type": "function", "function": function}]})
        )
        await begun.wait()
        await response.write(chunk(call, {}, "tool_calls") + b"data: [DONE]\n\n")
        return response

    guarded.upstream.answer = speak
    body = {**MESSAGES, "messages": [{"role": "user", "content": f"write {word}"}], "stream": True}
    url, headers = f"{guarded.served.url}/v1/chat/completions", {"x-route": "answers"}
    async with guarded.served.session.post(url, json=body, headers=headers) as response:
        assert response.status == 200
        begun.set()
        text = (await response.read()).decode()
    assert ("it says the word" in text, '"arguments": "harmless"' in text) == (word == "forbidden", word == "harmless")
