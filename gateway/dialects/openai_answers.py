"""OpenAI answers: judged, taken apart into chunks, put together from chunks, made from plain text. Pure.

`payload` is the data of a stream's events in order, `[DONE]` included, or one element: a whole body.
"""

from __future__ import annotations

import base64 as b64
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import accumulate
from typing import Any

import numpy as np
import orjson

from gateway.dialects.openai_merge import CHAT, DONE, assembled
from gateway.dialects.openai_pieces import STREAMED, chunks_of
from gateway.errors import Malformed
from gateway.messages import Admission, Event, Inspection, Token

FINISHED_BY_A_CALL = ("tool_calls", "function_call", "stop")
PREFIX = {CHAT: "chatcmpl-", "completions": "cmpl-"}


def inspect(operation: str, payload: Sequence[bytes], streamed: bool) -> Inspection:
    """Whether the answer is complete enough to be stored, and the tokens that it cost."""
    try:
        if streamed and (not payload or payload[-1] != DONE):
            return Inspection(Admission.CUT, 0, 0)
        body = assembled(operation, payload) if streamed else orjson.loads(payload[0])
        usage = body.get("usage") or {}
        tokens = int(usage.get("prompt_tokens") or 0), int(usage.get("completion_tokens") or 0)
        if body.get("error") is not None:
            return Inspection(Admission.ERROR_STATUS, *tokens)
        if operation == "embeddings":
            return Inspection(Admission.STORED if body["data"] else Admission.INCOMPLETE, *tokens)
        return Inspection(_judge_choices(operation, body["choices"]), *tokens)
    except (orjson.JSONDecodeError, KeyError, TypeError, AttributeError, ValueError, IndexError):
        return Inspection(Admission.MALFORMED, 0, 0)


def _judge_choices(operation: str, choices: Sequence[Mapping[str, Any]]) -> Admission:
    """Raises `TypeError` on a choice that says nothing: as a stream there would be nothing of it."""
    if not choices:
        return Admission.INCOMPLETE
    tools = False
    for choice in choices:
        message = {} if operation == "completions" else choice["message"]
        if not isinstance(message, dict) or (operation == "completions" and not isinstance(choice["text"], str)):
            raise TypeError("a choice without a message")
        called = bool(message.get("tool_calls") or message.get("function_call"))
        if choice.get("finish_reason") not in (FINISHED_BY_A_CALL if called else ("stop",)):
            return Admission.INCOMPLETE
        tools = tools or called or _searched(message)
    return Admission.TOOLS if tools else Admission.STORED


def _searched(message: Mapping[str, Any]) -> bool:
    """Whether the server has looked something up on the web, a tool whose results age."""
    found = message.get("annotations")
    kinds = (each.get("type") for each in found if isinstance(each, dict)) if isinstance(found, list) else ()
    return "url_citation" in kinds


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
        body = assembled(operation, payload)
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


def split(operation: str, whole: bytes) -> tuple[Event, ...]:
    """A whole body -> the stream that the same request with `stream` gets, usage chunk and `[DONE]` included. Raises
    `Malformed`."""
    with reading():
        body = orjson.loads(whole)
        _check_error(body)
        return (*(Event(orjson.dumps(chunk)) for chunk in chunks_of(operation, body)), Event(DONE))


def renewed(data: bytes, answer_id: str, created: int) -> bytes:
    """A whole body, or the data of one event, under another id and time; untouched where it has neither."""
    try:
        body = orjson.loads(data)
    except orjson.JSONDecodeError:
        return data
    if not isinstance(body, dict) or not body.keys() & {"id", "created"}:
        return data
    anew = {"id": answer_id, "created": created}
    return orjson.dumps({key: anew.get(key, value) for key, value in body.items()})


class OpenAITextAnswer:
    """Plain text -> chunks, for backends that know nothing but text."""

    def __init__(self, operation: str, answer_id: str, created: int, model: str) -> None:
        self._chat = operation == CHAT
        self._written = 0  # characters
        self._head = {
            "id": PREFIX[operation] + answer_id,
            "object": STREAMED[operation],
            "created": created,
            "model": model,
        }

    def _choice(self, text: str | None, finish: str | None, role: bool = False, logprobs: Any = None) -> Event:
        choice: dict[str, Any] = {"index": 0, "logprobs": logprobs, "finish_reason": finish}
        if self._chat:
            content = {} if text is None else {"content": text}
            choice["delta"] = {"role": "assistant", **content} if role else content
        else:
            choice["text"] = text or ""
        return Event(orjson.dumps({**self._head, "choices": [choice]}))

    def start(self) -> Sequence[Event]:
        return [self._choice("", None, role=True)] if self._chat else []

    def delta(self, text: str, tokens: Sequence[Token] = ()) -> Event:
        told = _logprobs(tokens, self._written, chat=self._chat) if tokens else None
        self._written += len(text)
        return self._choice(text, None, logprobs=told)

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


def _logprobs(tokens: Sequence[Token], offset: int, *, chat: bool) -> dict[str, Any]:
    """Of some tokens, the first of which begins `offset` characters into the text."""
    if chat:
        content = [{**_told(token), "top_logprobs": [_told(other) for other in token.beside]} for token in tokens]
        return {"content": content, "refusal": None}
    lengths = [0, *(len(token.text) for token in tokens)]
    return {
        "tokens": [token.text for token in tokens],
        "token_logprobs": [token.logprob for token in tokens],
        "top_logprobs": [{other.text: other.logprob for other in token.beside} for token in tokens],
        "text_offset": [offset + before for before in accumulate(lengths[:-1])],
    }


def _told(token: Token) -> dict[str, Any]:
    return {"token": token.text, "logprob": token.logprob, "bytes": list(token.text.encode())}


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
