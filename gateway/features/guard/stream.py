"""Holds a stream back until a guard has judged it, window by window."""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Awaitable, Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from gateway.calls import Call
from gateway.dialects.json_body import dump_json, load_json
from gateway.dialects.openai.answers import DONE
from gateway.errors import AnswerWithheld, ContentBlocked, GuardUnavailable, MalformedResponse, UpstreamStreamError
from gateway.features.guard.question import Content, Outcome, Verdict
from gateway.features.guard.stream_texts import Piece, Role, pieces_of, pieces_of_calls
from gateway.features.guard.texts import content_of_answer, drop_logprobs
from gateway.messages import Event
from gateway.streams import MAX_BUFFERED_BYTES, Comments, ObservedStream

WINDOW = 400  # characters of new text that are judged at once
CONTEXT = 2_000  # characters before a window that are judged with it
# Characters at the end of a window that stay for the next one, so that a guard also finds what crosses the border.
HOLDBACK = 64
HOLD_S = 0.5  # seconds after which a window is judged although it is not full
# Seconds after which a stream begins although nothing of it is judged, such as a long tool call. Proxies in front close
# a connection that is silent for a minute, and a stream that has begun gets keep-alives.
BEGIN_S = 10.0
# Bytes of held events, beyond which they are judged as they are. Those of a tool call are held up to `MAX_JUDGED`.
MAX_HELD = 1024 * 1024
MAX_JUDGED = MAX_BUFFERED_BYTES  # bytes of a stream that can be judged

Judge = Callable[[Content | None], Awaitable[Verdict | None]]
"""Returns the verdict `allow` or `replace`; None without one, if the policy lets the content pass. The content is None
if nobody can read it. Raises `ContentBlocked` or `GuardUnavailable`."""


@dataclass(slots=True)
class _Channel:
    """One text of the answer: as the backend sent it, and as it was passed on."""

    original: list[str] = field(default_factory=list)
    sent: list[str] = field(default_factory=list)
    sent_chars: int = 0

    @property
    def tail(self) -> str:
        """The end of what was passed on, `CONTEXT` characters at most."""
        tail, size = [], 0
        for text in reversed(self.sent):
            tail.append(text)
            size += len(text)
            if size >= CONTEXT:
                break
        return "".join(reversed(tail))[-CONTEXT:]


@dataclass(slots=True)
class _Held:
    """An event that waits for a verdict. `value` is its data, or None if that is no object."""

    event: Event
    value: dict[str, Any] | None
    pieces: list[Piece]
    is_changed: bool = False

    @property
    def chars(self) -> Counter[Hashable]:
        """The characters of its text, by channel."""
        chars = Counter[Hashable]()
        for piece in self.pieces:
            if piece.role is Role.DELTA:
                chars[piece.channel] += len(piece.text)
        return chars

    @property
    def has_tool(self) -> bool:
        return any(piece.role is Role.TOOL for piece in self.pieces)

    def to_event(self) -> Event:
        if not self.is_changed or self.value is None:
            return self.event
        drop_logprobs(self.value)
        return Event(dump_json(self.value), self.event.name)


class GuardedEvents:
    """The events of an answer, each after the verdict on it: an `EventSource`.

    A window of new text is judged with the text before it. The whole answer is judged before its last events, and so
    are its tool calls, which are held from their beginning. A change reaches what is held only: a guard that changes
    what was sent ends the stream.
    """

    can_notify = False

    def __init__(self, source: ObservedStream[Event], call: Call, judge: Judge) -> None:
        self.drained = True
        self.complete = False
        self._source = source
        self._call = call
        self._judge = judge
        self._reading: asyncio.Task[Sequence[Event]] | None = None
        self._held: list[_Held] = []
        self._held_bytes = 0
        self._due = 0.0  # when a window is judged although it is not full, on the clock of the event loop
        self._channels: dict[Hashable, _Channel] = {}
        self._new_chars = 0  # since the last verdict
        self._is_covered = True  # the last verdict was on the whole text so far
        self._payload: list[bytes] = []  # data of the events that were passed on
        self._bytes = 0  # of the answer
        self._is_readable = True
        self._is_judged = False  # the whole answer
        self._has_ended = False
        self._ready: list[Event] = []
        self._comments: Sequence[Event] = ()

    async def begin(self) -> None:
        """Wait until the first events may pass, or for `BEGIN_S`. Raise a `GatewayError` if none will."""
        loop = asyncio.get_running_loop()
        end = loop.time() + BEGIN_S
        try:
            while not (self._ready or self._has_ended) and loop.time() < end:
                self._comments = ()
                await self._advance(end)
        except UpstreamStreamError as error:
            await self.aclose()
            raise error.as_response() from None
        except BaseException:
            await self.aclose()
            raise

    def is_finished(self) -> bool:
        return not self._held and self._source.is_finished()

    def take(self) -> Sequence[Event] | None:
        if self._comments:
            comments, self._comments = self._comments, ()
            return comments
        if self._ready:
            ready, self._ready = self._ready, []
            self.complete = self._is_judged and self._source.complete
            return ready
        return () if self._has_ended else None

    async def wait(self) -> None:
        while not (self._ready or self._comments or self._has_ended):
            await self._advance()

    def subscribe(self, wake: Callable[[], None] | None) -> None:
        raise NotImplementedError  # not called, because `can_notify` is False

    async def aclose(self) -> None:
        reading, self._reading = self._reading, None
        if reading is not None:
            reading.cancel()
            await asyncio.wait({reading})
            if not reading.cancelled():
                reading.exception()  # nobody reads the answer any more
        await self._source.aclose()

    async def _advance(self, end: float = math.inf) -> None:
        """Read what comes next, and judge what is due. Wait until `end` at most, on the clock of the event loop."""
        loop = asyncio.get_running_loop()
        if self._reading is None:
            self._reading = loop.create_task(self._source.next_batch())
        due = self._due if self._held and not self._held[0].has_tool else math.inf
        until = min(due, end)
        timeout = None if until == math.inf else max(0.0, until - loop.time())
        done, _ = await asyncio.wait({self._reading}, timeout=timeout)
        if not done:
            if end < due:
                return
            if self._new_chars:
                await self._judge_window()
            else:
                self._release(0)
            return
        reading, self._reading = self._reading, None
        batch = reading.result()
        if type(batch) is Comments:
            self._comments = batch
            return
        for event in batch:
            self._hold(event)
        self._has_ended = not batch
        if self._source.complete or self._has_ended:
            await self._judge_whole()
        elif self._held_bytes > (MAX_JUDGED if any(held.has_tool for held in self._held) else MAX_HELD):
            await self._judge_window()
            self._release(0, tools=True)
        elif self._new_chars >= WINDOW and not any(held.has_tool for held in self._held):
            await self._judge_window()

    def _hold(self, event: Event) -> None:
        if not self._held:
            self._due = asyncio.get_running_loop().time() + HOLD_S
        value = self._value_of(event)
        held = _Held(event, value, [] if value is None else [*self._read(value)])
        self._held.append(held)
        self._held_bytes += len(event.data)
        self._bytes += len(event.data)
        self._is_readable = self._is_readable and self._bytes <= MAX_JUDGED

    def _value_of(self, event: Event) -> dict[str, Any] | None:
        try:
            value = load_json(event.data)
        except orjson.JSONDecodeError:
            value = None
        # Servers of other protocols end with OpenAI's mark, too.
        is_mark = event.data.strip() in (b"", DONE) or self._call.dialect.is_end(event)
        if not isinstance(value, dict) and not is_mark:
            self._is_readable = False
            self._note_new(1)
        return value if isinstance(value, dict) else None

    def _read(self, value: dict[str, Any]) -> Iterator[Piece]:
        """Yield the pieces of an event, and add its text to the channels. A whole text that repeats none is new."""
        for piece in pieces_of(value):
            if piece.role is Role.WHOLE and self._repeated(piece.text) is None:
                piece.role, piece.channel = Role.DELTA, ("whole", len(self._channels))
            if piece.role is Role.DELTA:
                self._channels.setdefault(piece.channel, _Channel()).original.append(piece.text)
                self._note_new(len(piece.text))
            elif piece.role is Role.TOOL:
                self._note_new(0)
            yield piece

    def _note_new(self, chars: int) -> None:
        self._new_chars += chars
        self._is_covered = self._is_judged = False

    def _repeated(self, text: str) -> _Channel | None:
        """Return the channel whose original text is this one."""
        return next((each for each in self._channels.values() if "".join(each.original) == text), None)

    async def _judge_window(self) -> None:
        await self._ask([channel.tail for channel in self._channels.values()], ())
        has_tool = any(held.has_tool for held in self._held)
        self._is_covered = not has_tool and all(each.sent_chars <= CONTEXT for each in self._channels.values())
        self._release(HOLDBACK)

    async def _judge_whole(self) -> None:
        """Judge the whole answer, unless the last verdict was on it, and pass on all that is held."""
        if not (self._is_judged or self._is_covered):
            await self._ask(["".join(channel.sent) for channel in self._channels.values()], self._tool_calls())
        self._is_judged = True
        self._release(0, tools=True)

    def _tool_calls(self) -> Sequence[Any]:
        """Return the tool calls of the answer, if it has any. Those that cannot be put together, such as one that the
        token limit cut, are returned as far as they came."""
        if not any(held.has_tool for held in self._held):
            return ()
        try:
            whole = load_json(
                self._call.dialect.whole(self._call, [*self._payload, *(each.event.data for each in self._held)])
            )
            found = content_of_answer(whole).tool_calls
        except (MalformedResponse, orjson.JSONDecodeError):
            found = ()
        return found or pieces_of_calls(piece for held in self._held for piece in held.pieces)

    async def _ask(self, before: Sequence[str], tool_calls: Sequence[Any]) -> None:
        """Ask for the verdict on what is held. `before` is the text of each channel that precedes it and that is judged
        with it. Raise `AnswerWithheld`."""
        held = [[*self._held_pieces(channel)] for channel in self._channels]
        texts = [text + "".join(piece.text for piece in pieces) for text, pieces in zip(before, held, strict=True)]
        content = Content(texts, tool_calls=tool_calls)
        self._new_chars = 0
        if not content and self._is_readable:
            return
        try:
            verdict = await self._judge(content if self._is_readable else None)
        except (ContentBlocked, GuardUnavailable) as error:
            raise AnswerWithheld(error) from None
        if verdict is None or verdict.outcome is not Outcome.REPLACE or verdict.texts is None:
            return
        for text, pieces, former, changed in zip(before, held, texts, verdict.texts, strict=True):
            if changed != former:
                self._replace(pieces, text, changed)

    def _held_pieces(self, channel: Hashable) -> Iterator[Piece]:
        for held in self._held:
            yield from (piece for piece in held.pieces if piece.role is Role.DELTA and piece.channel == channel)

    def _replace(self, pieces: Sequence[Piece], before: str, changed: str) -> None:
        """Put the changed text into the pieces of its channel that wait. Its end is in the last one, which waits on."""
        if not changed.startswith(before) or not pieces:
            raise AnswerWithheld(ContentBlocked("the guard changed a part of the answer that was sent already"))
        rest = changed.removeprefix(before)
        cut = max(0, len(rest) - HOLDBACK) if len(pieces) > 1 else len(rest)
        for piece in pieces:
            piece.text = ""
        pieces[-1].text = rest[cut:]
        pieces[0].text = rest[:cut] if len(pieces) > 1 else rest
        containers = {id(piece) for piece in pieces}
        for held in self._held:
            held.is_changed = held.is_changed or any(id(piece) in containers for piece in held.pieces)

    def _release(self, keep: int, *, tools: bool = False) -> None:
        """Pass on what is held, except for the last `keep` characters of each channel. Stop at a tool call, unless
        `tools` may pass."""
        left = Counter[Hashable]()
        for held in self._held:
            left.update(held.chars)
        count = 0
        for held in self._held:
            chars = held.chars
            if (held.has_tool and not tools) or (keep and any(left[each] - chars[each] < keep for each in chars)):
                break
            left.subtract(chars)
            count += 1
            self._pass(held)
        self._held_bytes -= sum(len(held.event.data) for held in self._held[:count])
        del self._held[:count]
        self._due = asyncio.get_running_loop().time() + HOLD_S

    def _pass(self, held: _Held) -> None:
        for piece in held.pieces:
            if piece.role is Role.DELTA:
                channel = self._channels[piece.channel]
                channel.sent.append(piece.text)
                channel.sent_chars += len(piece.text)
            elif piece.role is Role.WHOLE and (repeated := self._repeated(piece.text)) is not None:
                changed = "".join(repeated.sent)
                if changed != piece.text:
                    piece.text, held.is_changed = changed, True
        event = held.to_event()
        if self._bytes <= MAX_JUDGED:
            self._payload.append(event.data)
        self._ready.append(event)
