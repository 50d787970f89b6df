"""Answers of Gemini's protocol: inspect them, split them into the chunks of a stream, and join chunks. Pure.

`payload` is the data of a stream's events in order, or one element: a complete body. A chunk has the form of a body. A
stream has no end marker: its last chunks have the finish reasons.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import orjson

from gateway.calls import Inspection, Token
from gateway.dialects.conversation import is_blank, split_pieces
from gateway.dialects.json_body import dump_json, escape_line_ends, load_json
from gateway.dialects.openai.answers import reading
from gateway.dialects.structured_answers import as_dict, as_list
from gateway.dialects.usage import usage_in
from gateway.errors import MalformedResponse
from gateway.messages import Event
from gateway.outcomes import Admission
from gateway.prices import Tokens

GENERATE = "generateContent"
ROLE = "model"
STOP, LENGTH = "STOP", "MAX_TOKENS"
UNFINISHED = (None, "", "FINISH_REASON_UNSPECIFIED")
# Reasons for which Google's filters withhold an answer, or the rest of it.
REFUSALS = frozenset(
    {
        "SAFETY", "RECITATION", "LANGUAGE", "BLOCKLIST", "PROHIBITED_CONTENT", "SPII", "IMAGE_SAFETY",
        "IMAGE_PROHIBITED_CONTENT", "IMAGE_RECITATION", "MODEL_ARMOR",
    }
)  # fmt: skip
# Parts and fields that show the use of a tool. Results of the server's own tools age.
TOOL_PARTS = ("functionCall", "functionResponse", "executableCode", "codeExecutionResult", "toolCall", "toolResponse")
TOOL_FIELDS = ("groundingMetadata", "urlContextMetadata")
PLAIN = frozenset({"text", "thought"})  # the keys of a part of text that continues the part before it
LISTS = ("citationMetadata", "logprobsResult")  # fields of a candidate whose lists come in pieces
# The end of a stream, for the translation of its chunks. Backends do not send it, and clients do not see it.
END = Event(b"{ }")
DONE = b"[DONE]"  # the end of a stream of servers that serve OpenAI's protocol, too
MAX_CANDIDATES = 64  # of a stream that are told apart; the API allows 8
_TEXTS = tuple(map(str, range(MAX_CANDIDATES)))


def candidates_of(body: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the candidates of a body or a chunk. Some servers write null, or leave them out."""
    return [each for each in as_list(body.get("candidates")) if isinstance(each, dict)]


def parts_of(candidate: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the parts of a candidate. A candidate without any has no content, an empty one, or null."""
    return [part for part in as_list(as_dict(candidate.get("content")).get("parts")) if isinstance(part, dict)]


def is_finished(data: bytes) -> bool:
    """Return whether a chunk ends its answer: with a finish reason, or because the prompt was blocked."""
    try:
        chunk = load_json(data)
        return bool(as_dict(chunk.get("promptFeedback")).get("blockReason")) or any(
            candidate.get("finishReason") not in UNFINISHED for candidate in candidates_of(chunk)
        )
    except (ValueError, AttributeError):
        return False


class OpenCandidates:
    """`OpenCandidates` knows which candidates of a stream have begun and have no finish reason."""

    def __init__(self) -> None:
        self._states: dict[int, bool] = {}  # index -> whether the candidate has a finish reason

    def feed(self, data: bytes) -> None:
        try:
            candidates = candidates_of(load_json(data))
        except (ValueError, AttributeError):
            return
        for candidate in candidates:
            index = index_of(candidate)
            if index in self._states or len(self._states) < MAX_CANDIDATES:
                ended = candidate.get("finishReason") not in UNFINISHED
                self._states[index] = self._states.get(index, False) or ended

    def __bool__(self) -> bool:
        return not all(self._states.values())


def index_of(candidate: Mapping[str, Any]) -> int:
    """Return the index of a candidate. JSON leaves out the zero of protocol buffers. Some servers write a text."""
    index = candidate.get("index")
    if isinstance(index, str) and index in _TEXTS:
        return _TEXTS.index(index)
    return index if type(index) is int else 0


def assemble_body(payload: Iterable[bytes]) -> dict[str, Any]:
    """Join the data of all events. Malformed streams raise `ValueError`, `TypeError` or `AttributeError`.

    Texts in a row are one part, unless a signature or anything else belongs to one of them. The last value of any
    other field wins.
    """
    body: dict[str, Any] = {}
    candidates: dict[int, dict[str, Any]] = {}
    for data in payload:
        if data == DONE:
            continue
        chunk = load_json(data)
        for candidate in candidates_of(chunk):
            _add(candidates.setdefault(index_of(candidate), {}), candidate)
        for key, value in chunk.items():
            if key == "usageMetadata" and isinstance(value, dict):
                body[key] = {**as_dict(body.get(key)), **value}
            elif key != "candidates" and value is not None:
                body[key] = value
    return {"candidates": [candidates[index] for index in sorted(candidates)], **body} if candidates else body


def _add(merged: dict[str, Any], candidate: Mapping[str, Any]) -> None:
    content = candidate.get("content")
    if isinstance(content, dict):
        before = merged.setdefault("content", {})
        before |= {key: value for key, value in content.items() if key != "parts" and value is not None}
        parts = before.setdefault("parts", [])
        for part in parts_of(candidate):
            _add_part(parts, part)
    for key, value in candidate.items():
        if key in LISTS and isinstance(value, dict) and isinstance(merged.get(key), dict):
            merged[key] = _join(merged[key], value)
        elif key != "content" and value is not None:
            merged[key] = value


def _add_part(parts: list[dict[str, Any]], part: Mapping[str, Any]) -> None:
    last = parts[-1] if parts else None
    if (
        last is not None
        and _is_plain(last)
        and _is_plain(part)
        and bool(last.get("thought")) == bool(part.get("thought"))
    ):
        last["text"] += part["text"]
    elif part:
        parts.append(dict(part))


def _is_plain(part: Mapping[str, Any]) -> bool:
    return isinstance(part.get("text"), str) and part.keys() <= PLAIN


def _join(before: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    joined = dict(before)
    for key, value in more.items():
        earlier = joined.get(key)
        joined[key] = [*earlier, *value] if isinstance(earlier, list) and isinstance(value, list) else value
    return joined


def chunks_of(body: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the chunks of a whole body. The last one of a candidate has its finish reason, and the last of all the
    usage."""
    head = {key: body[key] for key in ("modelVersion", "responseId", "createTime") if key in body}
    rest = {key: value for key, value in body.items() if key not in head and key != "candidates"}
    pieces = [piece for candidate in candidates_of(body) for piece in _pieces(candidate)]
    for piece in pieces[:-1]:
        yield {"candidates": [piece], **head}
    yield {**({"candidates": pieces[-1:]} if pieces else {}), **rest, **head}


def _pieces(candidate: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the candidates of the chunks that make up one candidate."""
    content = as_dict(candidate.get("content"))
    frame = {key: value for key, value in content.items() if key != "parts"}
    split: list[Any] = []
    for part in parts_of(candidate):
        split += [{**part, "text": piece} for piece in split_pieces(part["text"])] if _is_plain(part) else [part]
    index = {"index": candidate["index"]} if "index" in candidate else {}
    if len(split) < 2:
        return [dict(candidate)]
    *begun, last = [{"content": {"parts": [part], **frame}, **index} for part in split]
    return [*begun, {**candidate, **last}]


def inspect(payload: Sequence[bytes], streamed: bool) -> Inspection:
    """Return whether the answer is complete enough to be stored, and its token counts."""
    try:
        body = assemble_body(payload) if streamed else load_json(payload[0])
        admission = _admission(body, streamed=streamed)
        tokens = usage_in(body).tokens or Tokens()
    except (ValueError, KeyError, TypeError, AttributeError, IndexError):
        return Inspection(Admission.MALFORMED, 0, 0)
    return Inspection(admission, tokens.input, tokens.output, tokens.cached, tokens.written, tokens.reasoning)


def _admission(body: Mapping[str, Any], *, streamed: bool) -> Admission:
    if body.get("error") is not None:
        return Admission.ERROR_STATUS
    if as_dict(body.get("promptFeedback")).get("blockReason"):
        return Admission.REFUSED
    candidates, admission, tools = candidates_of(body), Admission.STORED, False
    if not candidates:
        return Admission.CUT if streamed else Admission.INCOMPLETE
    for candidate in candidates:
        reason, parts = candidate.get("finishReason"), parts_of(candidate)
        if reason in UNFINISHED:
            return Admission.CUT if streamed else Admission.INCOMPLETE
        if reason in REFUSALS:
            return Admission.REFUSED
        if reason != STOP:
            return Admission.INCOMPLETE
        tools = tools or any(candidate.get(field) for field in TOOL_FIELDS)
        called = any(key in part for part in parts for key in TOOL_PARTS)
        tools = tools or called
        if not called and all(_is_blank(part) for part in parts):
            admission = Admission.EMPTY
    return Admission.TOOLS if tools and admission is Admission.STORED else admission


def _is_blank(part: Mapping[str, Any]) -> bool:
    """Return whether a part is a thought, a signature alone, or a text in which nobody sees anything."""
    if part.get("thought"):
        return True
    return is_blank(part["text"]) if "text" in part else part.keys() <= {"thoughtSignature"}


def text(whole: bytes) -> str | None:
    """Return the texts of all candidates, with a blank line between them; None if any has other content. Thoughts are
    left out. Raise `MalformedResponse`."""
    with reading():
        texts = []
        for candidate in candidates_of(load_json(whole)):
            spoken = [part for part in parts_of(candidate) if not (part.get("thought") or _is_blank(part))]
            if any(not isinstance(part.get("text"), str) for part in spoken):
                return None
            texts.append("".join(part["text"] for part in spoken))
        return "\n\n".join(texts) if texts and all(texts) else None


def assemble(payload: Sequence[bytes]) -> bytes:
    """Join a stream into the body that the same call without a stream gets. Raise `MalformedResponse`."""
    with reading():
        body = assemble_body(payload)
        _check_error(body)
        if not body:
            raise MalformedResponse("the response is empty")
        return dump_json(body)


def split(whole: bytes) -> tuple[Event, ...]:
    """Split a body into the stream that the same call with a stream gets. Raise `MalformedResponse`."""
    with reading():
        body = load_json(whole)
        _check_error(body)
        return tuple(map(encode_chunk, chunks_of(body)))


def encode_chunk(chunk: Mapping[str, Any]) -> Event:
    return Event(escape_line_ends(dump_json(chunk)))


def _check_error(body: Mapping[str, Any]) -> None:
    if body.get("error") is not None:
        message = as_dict(body["error"]).get("message")
        raise MalformedResponse(f"the response is an error: {str(message)[:300]}")


def renew(data: bytes, answer_id: str) -> bytes:
    """Return a body, or one event's data, with another id; unchanged if it has none."""
    try:
        body = load_json(data)
    except orjson.JSONDecodeError:
        return data
    if not isinstance(body, dict) or "responseId" not in body:
        return data
    return escape_line_ends(dump_json({**body, "responseId": answer_id}))


def candidate_of(parts: Sequence[Mapping[str, Any]], **fields: Any) -> dict[str, Any]:
    """Return a candidate. One without parts gets an empty text, as the API itself writes it."""
    return {"content": {"parts": [*parts] or [{"text": ""}], "role": ROLE}, **fields}


def usage_metadata(prompt: int, answer: int, *, cached: int = 0, thoughts: int = 0) -> dict[str, int]:
    """Return the counts of an answer. `answer` includes the thoughts, which the protocol counts apart."""
    counts = {"promptTokenCount": prompt, "candidatesTokenCount": answer - thoughts}
    if thoughts:
        counts["thoughtsTokenCount"] = thoughts
    if cached:
        counts["cachedContentTokenCount"] = cached
    return {**counts, "totalTokenCount": prompt + answer}


class GeminiTextAnswer:
    """`GeminiTextAnswer` builds chunks from plain text, for backends that return only text."""

    def __init__(self, answer_id: str, model: str) -> None:
        self._head = {"modelVersion": model, "responseId": answer_id}

    def start(self) -> Sequence[Event]:
        return []

    def delta(self, text: str, tokens: Sequence[Token] = ()) -> Event:
        return encode_chunk({"candidates": [candidate_of([{"text": text}], index=0)], **self._head})

    def finish(self, reason: str, input_tokens: int, output_tokens: int) -> Sequence[Event]:
        end = candidate_of([], finishReason=LENGTH if reason == "length" else STOP, index=0)
        usage = usage_metadata(input_tokens, output_tokens)
        return [encode_chunk({"candidates": [end], "usageMetadata": usage, **self._head})]
