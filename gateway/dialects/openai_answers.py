"""OpenAI answers: judged, taken apart into chunks, put together from chunks, made from plain text. Pure.

`payload` is the data of a stream's events in order, `[DONE]` included, or one element: a whole body.
"""

from __future__ import annotations

import base64 as b64
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import orjson

from gateway.errors import Malformed
from gateway.messages import Admission, Event
from gateway.ports import Inspection

DONE = b"[DONE]"
STREAMED = {"chat.completions": "chat.completion.chunk", "completions": "text_completion"}
REPLACED = frozenset({"role", "id", "type"})  # texts that a later delta does not continue
WHOLE = {"chat.completions": "chat.completion", "completions": "text_completion"}

# A replayed stream comes in pieces of some words: small enough to look like a stream, large enough to be cheap.
PIECE = re.compile(r"\s*(?:\S+\s*){1,6}")


def inspect(operation: str, payload: Sequence[bytes], streamed: bool) -> Inspection:
    """Whether the answer is complete enough to be stored, and the tokens that it cost."""
    try:
        if streamed and (not payload or payload[-1] != DONE):
            return Inspection(Admission.CUT, 0, 0)
        body = _assembled(operation, payload) if streamed else orjson.loads(payload[0])
        usage = body.get("usage") or {}
        tokens = int(usage.get("prompt_tokens", 0)), int(usage.get("completion_tokens", 0))
        if body.get("error") is not None:
            return Inspection(Admission.ERROR_STATUS, *tokens)
        if operation == "embeddings":
            return Inspection(Admission.STORED if body["data"] else Admission.INCOMPLETE, *tokens)
        return Inspection(_judge_choices(body["choices"]), *tokens)
    except (orjson.JSONDecodeError, KeyError, TypeError, AttributeError, ValueError, IndexError):
        return Inspection(Admission.MALFORMED, 0, 0)


def _judge_choices(choices: Sequence[Mapping[str, Any]]) -> Admission:
    if not choices:
        return Admission.INCOMPLETE
    for choice in choices:
        message = choice.get("message") or {}
        if message.get("tool_calls") or message.get("function_call"):
            return Admission.TOOLS
        if choice.get("finish_reason") != "stop":
            return Admission.INCOMPLETE
    return Admission.STORED


def text(operation: str, whole: bytes) -> str | None:
    """What all choices of a whole body say, a blank line between them; None where any says it in another way (a tool
    call, a refusal, audio). Raises `Malformed`."""
    with reading():
        choices = orjson.loads(whole)["choices"]
        if operation == "completions":
            texts = [choice["text"] for choice in choices]
        else:
            messages = [choice["message"] for choice in choices]
            if any(message.get("tool_calls") or message.get("refusal") or message.get("audio") for message in messages):
                return None
            texts = [message["content"] for message in messages]
        return "\n\n".join(texts) if texts and all(isinstance(said, str) and said for said in texts) else None


def is_usage_chunk(data: bytes) -> bool:
    """The extra chunk of `stream_options.include_usage`: usage and no choices."""
    try:
        chunk = orjson.loads(data)
    except orjson.JSONDecodeError:
        return False
    return isinstance(chunk, dict) and chunk.get("choices") == [] and chunk.get("usage") is not None


def assemble(operation: str, payload: Iterable[bytes]) -> bytes:
    """The chunks of a stream -> the body that the same request without `stream` gets. Raises `Malformed`."""
    with reading():
        body = _assembled(operation, payload)
        _check_error(body)
        if not body["choices"]:
            raise Malformed("the answer is empty")
        return orjson.dumps(body)


@contextmanager
def reading() -> Iterator[None]:
    """Whatever goes wrong in taking an answer apart is the answer's fault."""
    try:
        yield
    except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:  # orjson's are ValueErrors
        raise Malformed(f"the answer cannot be read ({type(error).__name__})") from None


def _check_error(body: Mapping[str, Any]) -> None:
    error = body.get("error")
    if error is not None:
        message = error.get("message") if isinstance(error, dict) else error
        raise Malformed(f"the answer is an error: {str(message)[:300]}")


def _assembled(operation: str, payload: Iterable[bytes]) -> dict[str, Any]:
    body: dict[str, Any] = {}
    choices: dict[int, dict[str, Any]] = {}
    for data in payload:
        if data == DONE:
            continue
        chunk = orjson.loads(data)
        for choice in chunk.pop("choices", None) or ():
            _merge_choice(choices.setdefault(choice.get("index", 0), {}), choice)
        body.update({key: value for key, value in chunk.items() if value is not None or key not in body})
    body["object"] = WHOLE[operation]
    body["choices"] = [_finished(operation, choice) for _, choice in sorted(choices.items(), key=lambda item: item[0])]
    return body


def _merge_choice(merged: dict[str, Any], choice: dict[str, Any]) -> None:
    delta = choice.pop("delta", None)
    if delta:
        merge_delta(merged.setdefault("delta", {}), delta)
    text = choice.pop("text", None)
    if text is not None:
        merged["text"] = merged.get("text", "") + text
    logprobs = choice.pop("logprobs", None)
    if logprobs is not None:
        merge_delta(merged.setdefault("logprobs", {}), logprobs)
    merged.update({key: value for key, value in choice.items() if value is not None or key not in merged})


def _finished(operation: str, choice: dict[str, Any]) -> dict[str, Any]:
    choice.setdefault("logprobs", None)
    if operation == "chat.completions":
        if "message" in choice:
            raise ValueError("a chunk with a whole message")
        delta = choice.pop("delta", {})
        for call in delta.get("tool_calls") or ():
            call.pop("index", None)
        choice["message"] = {"role": "assistant", "content": None, **delta}
    return choice


def merge_delta(merged: dict[str, Any], delta: Mapping[str, Any]) -> None:
    """Adds one delta to what came before it: text is appended, lists are joined (by `index` where their elements
    have one), objects are merged, everything else is replaced. Unknown fields follow the same rule."""
    for key, value in delta.items():
        before = merged.get(key)
        if before is None or value is None:
            merged[key] = before if value is None else value
        elif isinstance(before, str) and isinstance(value, str) and key not in REPLACED:
            merged[key] = before + value
        elif isinstance(before, dict) and isinstance(value, dict):
            merge_delta(before, value)
        elif isinstance(before, list) and isinstance(value, list):
            _merge_list(before, value)
        else:
            merged[key] = value


def _merge_list(before: list[Any], value: list[Any]) -> None:
    for element in value:
        index = element.get("index") if isinstance(element, dict) else None
        same = None if index is None else next((e for e in before if e.get("index") == index), None)
        if same is None:
            before.append(element)
        else:
            merge_delta(same, element)


def split(operation: str, whole: bytes) -> tuple[Event, ...]:
    """A whole body -> the stream that the same request with `stream` gets, usage chunk and `[DONE]` included. Raises
    `Malformed`."""
    with reading():
        body = orjson.loads(whole)
        _check_error(body)
        head = {key: value for key, value in body.items() if key != "choices" and (key != "usage" or value is None)}
        head["object"] = STREAMED[operation]
        parts = _chat_parts if operation == "chat.completions" else _text_parts
        chunks = [{**head, "choices": [part]} for choice in body["choices"] for part in parts(choice)]
        if body.get("usage") is not None:
            chunks.append({**head, "choices": [], "usage": body["usage"]})
        return (*(Event(orjson.dumps(chunk)) for chunk in chunks), Event(DONE))


def _chat_parts(choice: Mapping[str, Any]) -> Iterable[dict[str, Any]]:
    """Role first, then every text field in pieces, then what is no text in one piece, then the finish."""
    index, message = choice.get("index", 0), choice.get("message") or {}
    role = message.get("role", "assistant")

    def part(delta: dict[str, Any], **more: Any) -> dict[str, Any]:
        return {"index": index, "delta": delta, "logprobs": None, "finish_reason": None, **more}

    empty = {key: value for key, value in message.items() if value is None or value in ("", [])}
    yield part({"role": role, **({"content": ""} if isinstance(message.get("content"), str) else {}), **empty})
    # Models think before they speak: other text fields (reasoning, refusal) go before the content.
    for key in sorted((k for k in message if k not in ("role", "tool_calls")), key=lambda k: k == "content"):
        value = message[key]
        if isinstance(value, str) and key not in REPLACED:
            yield from (part({key: piece}) for piece in PIECE.findall(value) or ([value] if value else []))
        elif key not in empty:
            yield part({key: value})
    if message.get("tool_calls"):
        calls = [{"index": i, **call} for i, call in enumerate(message["tool_calls"])]
        yield part({"tool_calls": calls})
    if choice.get("logprobs") is not None:
        yield part({}, logprobs=choice["logprobs"])
    rest = {k: v for k, v in choice.items() if k not in ("index", "message", "logprobs")}
    yield {"index": index, "delta": {}, "logprobs": None, **rest}


def _text_parts(choice: Mapping[str, Any]) -> Iterable[dict[str, Any]]:
    index, text = choice.get("index", 0), choice.get("text") or ""
    for piece in PIECE.findall(text) or ([text] if text else []):
        yield {"index": index, "text": piece, "logprobs": None, "finish_reason": None}
    rest = {k: v for k, v in choice.items() if k not in ("index", "text")}
    yield {"index": index, "text": "", **rest}


class OpenAITextAnswer:
    """Plain text -> chunks, for backends that know nothing but text."""

    def __init__(self, operation: str, answer_id: str, created: int, model: str) -> None:
        self._chat = operation == "chat.completions"
        prefix = "chatcmpl-" if self._chat else "cmpl-"
        self._head = {
            "id": prefix + answer_id,
            "object": STREAMED[operation],
            "created": created,
            "model": model,
        }

    def _choice(self, text: str | None, finish: str | None, role: bool = False) -> Event:
        choice: dict[str, Any] = {"index": 0, "logprobs": None, "finish_reason": finish}
        if self._chat:
            content = {} if text is None else {"content": text}
            choice["delta"] = {"role": "assistant", **content} if role else content
        else:
            choice["text"] = text or ""
        return Event(orjson.dumps({**self._head, "choices": [choice]}))

    def start(self) -> Sequence[Event]:
        return [self._choice("", None, role=True)] if self._chat else []

    def delta(self, text: str) -> Event:
        return self._choice(text, None)

    def finish(self, reason: str, input_tokens: int, output_tokens: int) -> Sequence[Event]:
        usage = {
            "prompt_tokens": input_tokens,
            "completion_tokens": output_tokens,
            "total_tokens": input_tokens + output_tokens,
        }
        return [
            self._choice(None, reason),
            Event(orjson.dumps({**self._head, "choices": [], "usage": usage})),
            Event(DONE),
        ]


def embeddings(vectors: Sequence[Sequence[float]], model: str, *, base64: bool) -> bytes:
    """An embeddings answer; `base64` packs each vector as little-endian float32, which the official client asks for."""

    def packed(vector: Sequence[float]) -> str | list[float]:
        array = np.asarray(vector, dtype="<f4")
        return b64.b64encode(array.tobytes()).decode() if base64 else array.tolist()

    return orjson.dumps(
        {
            "object": "list",
            "data": [
                {"object": "embedding", "index": i, "embedding": packed(vector)} for i, vector in enumerate(vectors)
            ],
            "model": model,
            "usage": {"prompt_tokens": 0, "total_tokens": 0},
        }
    )
