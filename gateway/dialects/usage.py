"""Read the usage that an answer reports, whatever protocol it is in. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import orjson

from gateway.dialects.json_body import count_of, load_json, read_count
from gateway.dialects.openai.answers import cached_tokens, reasoning_tokens, usage_of, written_tokens
from gateway.dialects.sse import SSEParser
from gateway.errors import UpstreamStreamError
from gateway.messages import media_type
from gateway.prices import Tokens, Unit

MAX_JSON_BYTES = 1024 * 1024  # of an answer that is parsed whole; of a longer one, both ends are searched
END_BYTES = 64 * 1024
PICTURE = b'"b64_json"'  # the key of a picture

_USAGE_KEY = re.compile(rb'(?<!\\)"(?:usage|usageMetadata)"\s*:\s*\{')
_TIMESTAMP = re.compile(rb"(?:(\d{1,3}):)?(\d{1,2}):(\d{2})[.,](\d{3})\s*(?:\r?\n|$)")  # the end of a subtitle

# The names of the counts: of OpenAI, of Anthropic and Responses, of Bedrock, of Gemini.
_INPUT = ("prompt_tokens", "input_tokens", "inputTokens", "promptTokenCount")
_OUTPUT = ("completion_tokens", "output_tokens", "outputTokens", "candidatesTokenCount")
_TOTAL = ("total_tokens", "totalTokens", "totalTokenCount")
# Anthropic and Bedrock count what a prompt cache read and wrote apart.
_APART = ("cache_creation_input_tokens", "cache_read_input_tokens", "cacheWriteInputTokens", "cacheReadInputTokens")


@dataclass(frozen=True, slots=True)
class AnswerUsage:
    """The usage that one answer, or a part of it, reports. A field is None if it reports no such thing."""

    tokens: Tokens | None = None
    images: int | None = None
    seconds: float | None = None  # of sound or video
    searches: float | None = None  # search units of a reranker

    def amount_of(self, unit: Unit | None) -> float | None:
        """Return the amount of a unit, or None if the answer does not tell it."""
        if unit is Unit.IMAGE:
            return self.images
        return self.searches if unit is Unit.SEARCH else self.seconds if unit is not Unit.CHARACTERS else None

    def merged(self, later: AnswerUsage) -> AnswerUsage:
        """Return this usage with all that a later part of the answer says. Counts of later parts are totals."""
        return AnswerUsage(
            later.tokens or self.tokens,
            self.images if later.images is None else (self.images or 0) + later.images,
            self.seconds if later.seconds is None else later.seconds,
            self.searches if later.searches is None else later.searches,
        )


NOTHING = AnswerUsage()


def usage_in(value: object) -> AnswerUsage:
    """Return the usage in a whole answer, an event of a stream, or a message of a WebSocket."""
    if not isinstance(value, Mapping):
        return NOTHING
    try:
        return AnswerUsage(_tokens_in(value), _images_in(value), _seconds_in(value), _searches_in(value))
    except (TypeError, ValueError):
        return NOTHING


def _tokens_in(value: Mapping[str, Any]) -> Tokens | None:
    for holder in _holders(value):
        usage = usage_of(holder) or holder.get("usageMetadata")
        if isinstance(usage, Mapping) and (counts := _counts(usage)) is not None:
            return counts
        for owner in (holder.get("meta"), usage):  # Cohere: its first API, and the chat of its second one
            # It bills fewer tokens than its models read.
            for units in (owner.get("billed_units"), owner.get("tokens")) if isinstance(owner, Mapping) else ():
                if isinstance(units, Mapping) and (counts := _counts(units)) is not None:
                    return counts
        if isinstance(holder.get("eval_count"), int) or isinstance(holder.get("prompt_eval_count"), int):  # Ollama
            return Tokens(count_of(holder.get("prompt_eval_count")), count_of(holder.get("eval_count")))
        if isinstance(holder.get("tokens_predicted"), int):  # llama.cpp
            return Tokens(count_of(holder.get("tokens_evaluated")), count_of(holder.get("tokens_predicted")))
    return None


def _holders(value: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield the objects that may have a usage: the answer, or what its event carries."""
    for holder in (value.get("response"), value.get("message"), value.get("delta"), value):
        if isinstance(holder, Mapping):
            yield holder


def _counts(usage: Mapping[str, Any]) -> Tokens | None:
    """Return the tokens of a usage, or None if it has none, such as one of seconds.

    Gemini counts thoughts apart from the answer, as its total shows. Some endpoints count them in both.
    """
    if all(read_count(usage.get(key)) is None for key in (*_INPUT, *_OUTPUT, *_TOTAL)):
        return None
    taken, made, thoughts = _first(usage, _INPUT), _first(usage, _OUTPUT), count_of(usage.get("thoughtsTokenCount"))
    if thoughts and _first(usage, _TOTAL) != taken + made:
        made += thoughts
    read = count_of(usage.get("cache_read_input_tokens")) or count_of(usage.get("cacheReadInputTokens"))
    taken += sum(count_of(usage.get(key)) for key in _APART) if "prompt_tokens" not in usage else 0
    taken = max(taken, _first(usage, _TOTAL) - made)
    cached = cached_tokens(usage) or read or count_of(usage.get("cachedContentTokenCount"))
    written = written_tokens(usage) or count_of(usage.get("cacheWriteInputTokens"))
    return Tokens(taken, made, cached, written, thoughts or reasoning_tokens(usage))


def _first(usage: Mapping[str, Any], names: Sequence[str]) -> int:
    return next((count_of(usage[name]) for name in names if usage.get(name) is not None), 0)


def _images_in(value: Mapping[str, Any]) -> int | None:
    if str(value.get("type", "")).endswith(("image_generation.completed", "image_edit.completed")):
        return 1
    data = value.get("data")
    if not isinstance(data, list) or not data:
        return None
    pictures = sum(isinstance(item, Mapping) and ("b64_json" in item or "url" in item) for item in data)
    return pictures or None


def _searches_in(value: Mapping[str, Any]) -> float | None:
    meta = value.get("meta")  # Cohere
    units = meta.get("billed_units") if isinstance(meta, Mapping) else None
    searches = units.get("search_units") if isinstance(units, Mapping) else None
    return float(searches) if isinstance(searches, int | float) and 0 < searches < 10**6 else None


def _seconds_in(value: Mapping[str, Any]) -> float | None:
    usage = value.get("usage")
    own = usage.get("seconds") if isinstance(usage, Mapping) else None
    for stated in (own, value.get("duration"), value.get("seconds")):
        if isinstance(stated, int | float | str) and not isinstance(stated, bool):
            try:
                seconds = float(stated)
            except ValueError:
                continue
            if 0 <= seconds < 10**7:
                return seconds
    return None


def message_usage(frame: str | bytes) -> AnswerUsage:
    """Return the usage that a message of a WebSocket reports. Gemini sends JSON in binary frames."""
    if ('"usage' if isinstance(frame, str) else b'"usage') not in frame:  # type: ignore[operator]
        return NOTHING
    return usage_in(_parsed(frame))


class UsageReader:
    """`UsageReader` reads the usage of a body as it passes: JSON, lines of JSON, events, or subtitles."""

    def __init__(self, content_type: str) -> None:
        kind = media_type(content_type)
        self._parser = SSEParser() if kind == "text/event-stream" else None
        self._is_json = kind == "" or "json" in kind
        self._is_text = kind.startswith("text/")
        self._found = NOTHING
        self._head, self._tail = bytearray(), bytearray()
        self._pictures, self._carry = 0, b""
        self.size = 0
        """Bytes so far."""

    @property
    def is_readable(self) -> bool:
        """Whether the answer is text, so that its length says something about its tokens."""
        return self._is_json or self._is_text

    def feed(self, piece: bytes) -> None:
        self.size += len(piece)
        if self._parser is not None:
            self._feed_events(piece)
        elif self._is_json or self._is_text:
            room = MAX_JSON_BYTES - len(self._head)
            if room > 0:
                self._head += piece[:room]
            if self._is_json:
                searched = self._carry + piece
                self._pictures += searched.count(PICTURE)
                self._carry = searched[1 - len(PICTURE) :]
            if len(piece) > room:
                self._tail = (self._tail + piece[max(0, room) :])[-END_BYTES:]

    def _feed_events(self, piece: bytes) -> None:
        assert self._parser is not None
        try:
            for event in self._parser.feed(piece):
                self.see(event.data)
        except UpstreamStreamError:  # an event that is too long, which the client may still want
            self._parser, self._is_text, self._is_json = None, False, False

    def see(self, data: bytes | str) -> AnswerUsage:
        """Read one event, or one message of a WebSocket. Return what it reports."""
        usage = usage_in(_parsed(data))
        if usage != NOTHING:
            self._found = self._found.merged(usage)
        return usage

    def result(self) -> AnswerUsage:
        """Return the usage of the whole answer, at its end."""
        if self._parser is not None:
            for event in self._parser.close():
                self.see(event.data)
            return self._found
        if self._tail:
            return self._result_of_ends()
        data = bytes(self._head)
        whole = _parsed(data)
        if whole is not None:
            return usage_in(whole)
        usage = NOTHING
        for line in data.split(b"\n") if self._is_json else ():  # Ollama's lines
            usage = usage.merged(usage_in(_parsed(line)))
        return usage if usage != NOTHING or not self._is_text else AnswerUsage(seconds=_last_timestamp(data))

    def _result_of_ends(self) -> AnswerUsage:
        """Return the usage of an answer that is too long to be parsed, such as pictures."""
        return replace(self._usage_of_ends(), images=self._pictures or None)

    def _usage_of_ends(self) -> AnswerUsage:
        """Return the usage in the beginning or the end of an answer."""
        for end in (bytes(self._tail), bytes(self._head[:END_BYTES])):
            for match in reversed([*_USAGE_KEY.finditer(end)]):
                try:
                    usage, _ = json.JSONDecoder().raw_decode(end[match.end() - 1 :].decode("utf-8", "replace"))
                except ValueError:
                    continue
                reported = usage_in({"usage": usage})
                if reported.tokens is not None:
                    return reported
        return NOTHING


def _parsed(data: bytes | str) -> Any:
    try:
        return load_json(data if isinstance(data, bytes) else data.encode("utf-8", "surrogatepass"))
    except orjson.JSONDecodeError:
        return None


def _last_timestamp(data: bytes) -> float | None:
    """Return the end of the last subtitle (SRT, WebVTT) in seconds."""
    timestamps = [*_TIMESTAMP.finditer(data)]
    if not timestamps:
        return None
    hours, minutes, seconds, millis = (int(part or 0) for part in timestamps[-1].groups())
    return 3600 * hours + 60 * minutes + seconds + millis / 1000
