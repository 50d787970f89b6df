"""OpenAI responses: inspect them, split them into chunks, join chunks, and build them from plain text. Pure.

`payload` is the data of a stream's events in order, `[DONE]` included, or one element: a complete body.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import accumulate
from operator import itemgetter
from typing import Any

import numpy as np
import orjson

from gateway.calls import Inspection, Token
from gateway.dialects.conversation import is_blank, split_pieces
from gateway.dialects.json_body import count_of, escape_line_ends, json_writer, load_json
from gateway.dialects.openai.chat_deltas import REPLACED_FIELDS, ChatMessage
from gateway.dialects.openai.vector_format import encode_vector, has_vectors
from gateway.errors import MalformedResponse
from gateway.messages import Event
from gateway.outcomes import Admission

# Join the chunks of a stream into the body that the same request without `stream` gets. Pure.
#
# Servers add fields at every level, and send a value once, in every chunk, or in pieces. The position of a field
# decides: model output (`delta`, `text`) comes in pieces that are joined. Fields about it (of the chunk or choice) are
# repeated or completed. There an empty value never removes an earlier one, as in the chunks that some servers send
# around a response for their content filters.

DONE = b"[DONE]"

CHAT = "chat.completions"

WHOLE = {CHAT: "chat.completion", "completions": "text_completion"}


def assemble_body(operation: str, payload: Iterable[bytes]) -> dict[str, Any]:
    """Join the data of all events. Required fields that no chunk has become null or empty.

    Malformed streams raise `ValueError`, `TypeError`, `AttributeError` or `KeyError`.
    """
    body: dict[str, Any] = {}
    choices: dict[int, dict[str, Any]] = {}
    messages: dict[int, ChatMessage] = {}
    for data in payload:
        if data == DONE:
            break  # notes of the server may follow
        chunk = load_json(data)
        if chunk.get("type") == "ping":
            continue  # a sign of life of the server
        for choice in chunk.pop("choices", None) or ():
            index = choice.get("index") or 0
            if operation == CHAT and (delta := choice.pop("delta", None)):
                messages.setdefault(index, ChatMessage()).add(delta)
            _add(operation, choices.setdefault(index, {}), choice)
        _merge_fields(body, chunk)
    body["object"] = WHOLE[operation]
    body["choices"] = [
        _finish_choice(operation, index, choices[index], messages.get(index)) for index in sorted(choices)
    ]
    return body


def _add(operation: str, merged: dict[str, Any], choice: dict[str, Any]) -> None:
    if operation != CHAT and "text" in choice:
        merged["text"] = merged.get("text", "") + (choice.pop("text") or "")
    _merge_fields(merged, choice, grow=True)


def _finish_choice(operation: str, index: int, choice: dict[str, Any], message: ChatMessage | None) -> dict[str, Any]:
    choice = {"index": index, "logprobs": None, "finish_reason": None, **choice}
    if operation != CHAT:
        if "text" not in choice:
            raise ValueError("a choice without a text")
        return choice
    if "message" in choice and message is None:  # next to deltas it only repeats them, as in Perplexity's streams
        raise ValueError("a chunk with a whole message")
    choice["message"] = {"role": "assistant", "content": None, **({} if message is None else message.to_message())}
    if not choice["message"]["role"]:  # GLM and MiniMax send an empty one in each delta
        choice["message"]["role"] = "assistant"
    return choice


def _merge_fields(merged: dict[str, Any], settings: Mapping[str, Any], *, grow: bool = False) -> None:
    """Merge fields: the last non-empty value wins, objects are merged; with `grow`, lists are joined."""
    for key, value in settings.items():
        before = merged.get(key)
        if before is None or (value and isinstance(value, str)):
            merged[key] = value
        elif isinstance(before, dict) and isinstance(value, dict):
            _merge_fields(before, value, grow=grow and key == "logprobs")
        elif grow and isinstance(before, list) and isinstance(value, list):
            before.extend(value)
        elif not (value is None or value in ("", [], {}) or (key == "created" and value == 0)):
            merged[key] = value


# Split a complete response into the chunks of a stream. Pure.
STREAMED = {CHAT: "chat.completion.chunk", "completions": "text_completion"}

# Fields in every chunk; other fields occur once.
REPEATED_FIELDS = ("id", "object", "created", "model", "system_fingerprint", "service_tier")


def chunks_of(operation: str, body: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the chunks; the last one has the usage, if any. Malformed bodies raise `KeyError` and the like."""
    head = {key: body[key] for key in REPEATED_FIELDS if key in body} | {"object": STREAMED[operation]}
    usage = body.get("usage")
    once = {
        key: value
        for key, value in body.items()
        if key not in head and key != "choices" and not (key == "usage" and usage is not None)
    }
    choices = body["choices"]
    parts = _chat_parts if operation == CHAT else _text_parts
    for index, choice in sorted(zip(_indices(choices), choices, strict=True), key=itemgetter(0)):
        for part in parts(index, choice):
            yield {**head, **once, "choices": [part]}
            once = {}
    if once:
        yield {**head, **once, "choices": []}
    if usage is not None:
        yield {**head, "choices": [], "usage": usage}


def _indices(choices: list[dict[str, Any]]) -> list[int]:
    """Return the choices' own indices; their positions if these are not unique."""
    own = [choice.get("index") for choice in choices]
    numbers = [index for index in own if type(index) is int]
    return numbers if len(set(numbers)) == len(own) else list(range(len(own)))


def _chat_parts(index: int, choice: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the role first, then each text field in pieces, then other fields complete, then the finish."""
    message = choice.get("message")
    if not isinstance(message, dict):
        raise TypeError("a choice without a message")

    def part(delta: dict[str, Any]) -> dict[str, Any]:
        return {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}

    fields = {key: value for key, value in message.items() if key != "role"}
    empty = {key: value for key, value in fields.items() if value is None or value in ("", [])}
    begun = {"content": ""} if isinstance(message.get("content"), str) else {}
    yield part({"role": message.get("role") or "assistant", **begun, **empty})
    # Models think, then speak, then act. So other text fields (reasoning, refusal) come before the content.
    order = {"content": 1, "tool_calls": 2, "function_call": 2}
    for key in sorted((key for key in fields if key not in empty), key=lambda key: order.get(key, 0)):
        value = fields[key]
        if isinstance(value, str) and key not in REPLACED_FIELDS:
            yield from (part({key: piece}) for piece in split_pieces(value))
        elif key == "tool_calls" and isinstance(value, list) and all(isinstance(call, dict) for call in value):
            for place, call in enumerate(value):
                for delta in _function_parts(call, "function", {"index": place}):
                    yield part({"tool_calls": [delta]})
        elif key == "function_call" and isinstance(value, dict):
            yield from (part(delta) for delta in _function_parts({key: value}, key, {}))
        else:
            yield part({key: value})
    if choice.get("logprobs") is not None:
        yield {**part({}), "logprobs": choice["logprobs"]}
    # A client would take `delta` for model output.
    rest = {key: value for key, value in choice.items() if key not in ("index", "message", "logprobs", "delta")}
    yield {**part({}), **rest}


def _function_parts(call: Mapping[str, Any], key: str, framing: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield a tool call with its name first, then its arguments in pieces."""
    function = call.get(key)
    arguments = function.get("arguments") if isinstance(function, dict) else None
    if not isinstance(function, dict) or not isinstance(arguments, str):
        yield {**call, **framing}
        return
    yield {**call, **framing, key: {**function, "arguments": ""}}
    yield from ({**framing, key: {"arguments": piece}} for piece in split_pieces(arguments))


def _text_parts(index: int, choice: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    empty = {"index": index, "text": "", "logprobs": None, "finish_reason": None}
    yield from ({**empty, "text": piece} for piece in split_pieces(choice.get("text") or ""))
    yield {**empty, **{key: value for key, value in choice.items() if key not in ("index", "text")}}


TOOL_CALL_FINISHES = ("tool_calls", "function_call", "stop")

PREFIX = {CHAT: "chatcmpl-", "completions": "cmpl-"}


def inspect(operation: str, payload: Sequence[bytes], streamed: bool) -> Inspection:
    """Return whether the response is complete enough to be stored, and its token counts."""
    try:
        body = assemble_body(operation, payload) if streamed else load_json(payload[0])
        usage = usage_of(body)
        counts = count_of(usage.get("prompt_tokens")), count_of(usage.get("completion_tokens"))
        tokens = *counts, *token_details(usage)
        if body.get("error") is not None:
            return Inspection(Admission.ERROR_STATUS, *tokens)
        if streamed and DONE not in payload:
            return Inspection(Admission.CUT, *tokens)
        if operation == "embeddings":
            return Inspection(Admission.STORED if has_vectors(body["data"]) else Admission.INCOMPLETE, *tokens)
        return Inspection(_admission(operation, body["choices"]), *tokens)
    except (orjson.JSONDecodeError, KeyError, TypeError, AttributeError, ValueError, IndexError):
        return Inspection(Admission.CUT if streamed and DONE not in payload else Admission.MALFORMED, 0, 0)


def is_error(data: bytes) -> bool:
    """Return whether an event is an error."""
    try:
        return b'"error"' in data and load_json(data).get("error") is not None
    except (ValueError, AttributeError):
        return False


MAX_CHOICES = 1_024  # of a stream that are told apart; OpenAI's `n` is at most 128


class OpenChoices:
    """`OpenChoices` knows which choices of a stream have begun and have no finish reason. Its last events do not tell:
    one choice may stand still while the others go on."""

    def __init__(self) -> None:
        self._states: dict[int, bool] = {}  # index -> whether the choice has a finish reason

    def feed(self, data: bytes) -> None:
        for index, is_finished in _choices_of(data):
            if index in self._states or len(self._states) < MAX_CHOICES:
                self._states[index] = self._states.get(index, False) or is_finished

    def __bool__(self) -> bool:
        return not all(self._states.values())


def has_several_choices(body: Mapping[str, Any]) -> bool:
    """Return whether a call asks for more than one choice."""
    prompt = body.get("prompt")
    return body.get("n") not in (None, 0, 1) or (isinstance(prompt, list) and len(prompt) > 1)


def _choices_of(data: bytes) -> list[tuple[int, bool]]:
    """Return the index of each choice in an event, and whether it has a finish reason; none if it is unreadable."""
    try:
        return [
            (choice.get("index") or 0, bool(choice.get("finish_reason")))
            for choice in load_json(data).get("choices") or ()
        ]
    except (ValueError, TypeError, AttributeError):
        return []


def is_over(last: Sequence[bytes]) -> bool:
    """Return whether a stream with these last events is over: `[DONE]` or an error is among them, or each choice has a
    finish reason. Some servers leave out `[DONE]`."""
    if DONE in last or any(map(is_error, last)):
        return True
    choices: dict[int, bool] = {}  # index -> whether the choice has a finish reason
    for data in last:
        for index, is_finished in _choices_of(data):
            choices[index] = choices.get(index, False) or is_finished
    return bool(choices) and all(choices.values())


def _admission(operation: str, choices: Sequence[Mapping[str, Any]]) -> Admission:
    """Return the admission. Raise `TypeError` for a choice without a message, of which a stream would show nothing."""
    if not choices:
        return Admission.INCOMPLETE
    tools, admission = False, Admission.STORED
    for choice in choices:
        message = {} if operation == "completions" else choice["message"]
        if not isinstance(message, dict) or (operation == "completions" and not isinstance(choice["text"], str)):
            raise TypeError("a choice without a message")
        called = bool(message.get("tool_calls") or message.get("function_call"))
        if choice.get("finish_reason") not in (TOOL_CALL_FINISHES if called else ("stop",)):
            return Admission.INCOMPLETE
        tools = tools or called or _has_web_search(message)
        if _is_refusal(message):
            admission = Admission.REFUSED
        elif admission is Admission.STORED and not called:
            blank = is_blank(choice["text"]) if operation == "completions" else not _says_something(message)
            admission = Admission.EMPTY if blank else admission
    return Admission.TOOLS if tools and admission is Admission.STORED else admission


REASONING = frozenset({"thinking", "reasoning"})  # parts of a content in which a model thinks


def _says_something(message: Mapping[str, Any]) -> bool:
    """Return whether a message has more than reasoning: a text that one sees, speech, or a picture."""
    content = message.get("content")
    if isinstance(content, list):  # Mistral's parts, and those of servers that make pictures
        parts = [part for part in content if isinstance(part, dict) and part.get("type") not in REASONING]
        texts = [part.get("text") for part in parts if part.get("type") in ("text", "output_text")]
        if len(texts) < len(parts) or not all(map(is_blank, texts)):
            return True
    elif not is_blank(content):
        return True
    return bool(message.get("audio") or message.get("images"))


def _is_refusal(message: Mapping[str, Any]) -> bool:
    content = message.get("content")
    parts = content if isinstance(content, list) else ()
    return bool(message.get("refusal")) or any(isinstance(p, dict) and p.get("type") == "refusal" for p in parts)


def _has_web_search(message: Mapping[str, Any]) -> bool:
    """Return whether the server searched the web: a tool whose results age."""
    annotations = message.get("annotations")
    kinds = (
        (each.get("type") for each in annotations if isinstance(each, dict)) if isinstance(annotations, list) else ()
    )
    return "url_citation" in kinds


def text(operation: str, whole: bytes) -> str | None:
    """Return the texts of all choices, with a blank line between them; None if any has other content.

    Other content is a tool call, a refusal or audio. Raise `MalformedResponse`.
    """
    with reading():
        choices = load_json(whole)["choices"]
        if operation == "completions":
            texts = [choice["text"] for choice in choices]
        else:
            messages = [choice["message"] for choice in choices]
            if any(message.get("tool_calls") or message.get("refusal") or message.get("audio") for message in messages):
                return None
            texts = [message["content"] for message in messages]
        return "\n\n".join(texts) if texts and all(isinstance(part, str) and part for part in texts) else None


def usage_of(body: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the usage that a body or a chunk reports; empty if it reports none.

    Moonshot reports the usage of a stream in the last choice, and Groq in a field of its own.
    """
    if usage := body.get("usage"):
        return usage if isinstance(usage, Mapping) else {}
    choices = body.get("choices")
    holders = [body.get("x_groq"), *(choices if isinstance(choices, list) else ())]
    usages = (holder.get("usage") for holder in holders if isinstance(holder, Mapping))
    return next((usage for usage in usages if usage and isinstance(usage, Mapping)), {})


# The fields of a usage that have the details of its input: of chat completions, and of responses.
INPUT_DETAILS = ("prompt_tokens_details", "input_tokens_details")
# The fields of a usage without details.
PLAIN = frozenset({"prompt_tokens", "completion_tokens", "input_tokens", "output_tokens", "total_tokens"})
# Those that have the details of its output, and the names of the count: of OpenAI, and of Anthropic.
OUTPUT_DETAILS = ("completion_tokens_details", "output_tokens_details")
THOUGHT = ("reasoning_tokens", "thinking_tokens")
# The same count next to the other counts: of Moonshot, and of DeepSeek.
CACHED = ("cached_tokens", "prompt_cache_hit_tokens")
# What was written to a prompt cache, in the details: of OpenAI and OpenRouter, and of LiteLLM.
WRITTEN = ("cache_write_tokens", "cache_creation_tokens")


def token_details(usage: Mapping[str, Any]) -> tuple[int, int, int]:
    """Return the tokens of a usage that a prompt cache supplied, that were written to one, and that are reasoning."""
    if PLAIN.issuperset(usage):
        return 0, 0, 0
    return cached_tokens(usage), written_tokens(usage), reasoning_tokens(usage)


def cached_tokens(usage: Mapping[str, Any]) -> int:
    """Return the input tokens of a usage that a prompt cache supplied; 0 if it reports none."""
    return _first_count([*_input_details(usage, "cached_tokens"), *(usage.get(key) for key in CACHED)])


def written_tokens(usage: Mapping[str, Any]) -> int:
    """Return the input tokens of a usage that were written to a prompt cache; 0 if it reports none."""
    # Gateways in front of Anthropic's models add its own name for the count.
    return _first_count([*_input_details(usage, *WRITTEN), usage.get("cache_creation_input_tokens")])


def reasoning_tokens(usage: Mapping[str, Any]) -> int:
    """Return the output tokens of a usage that are reasoning; 0 if it reports none."""
    details = (usage.get(key) for key in OUTPUT_DETAILS)
    return _first_count(each.get(name) for each in details if isinstance(each, Mapping) for name in THOUGHT)


def _input_details(usage: Mapping[str, Any], *keys: str) -> Iterator[Any]:
    for details in (usage.get(key) for key in INPUT_DETAILS):
        if isinstance(details, Mapping):
            yield from (details.get(key) for key in keys)


def _first_count(counts: Iterable[Any]) -> int:
    return next((count for each in counts if (count := count_of(each))), 0)


def is_usage_chunk(data: bytes) -> bool:
    """Return whether this is the extra chunk of `stream_options.include_usage`: usage and no choices.

    OpenAI writes an empty list there, others null or nothing.
    """
    try:
        chunk = load_json(data)
    except orjson.JSONDecodeError:
        return False
    return isinstance(chunk, dict) and not chunk.get("choices") and chunk.get("usage") is not None


def assemble(operation: str, payload: Sequence[bytes]) -> bytes:
    """Join a stream into the body that the same request without `stream` gets. Raise `MalformedResponse`."""
    with reading():
        body = assemble_body(operation, payload)
        _check_error(body)
        if not body["choices"]:
            raise MalformedResponse("the response is empty")
        return json_writer(payload)(body)


@contextmanager
def reading() -> Iterator[None]:
    """Convert parse errors within the block to `MalformedResponse`."""
    try:
        yield
    except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:  # orjson's errors are ValueErrors
        raise MalformedResponse(f"the response cannot be parsed ({type(error).__name__})") from None


def _check_error(body: Mapping[str, Any]) -> None:
    error = body.get("error")
    if error is not None:
        message = error.get("message") if isinstance(error, dict) else error
        raise MalformedResponse(f"the response is an error: {str(message)[:300]}")


def split(operation: str, whole: bytes) -> tuple[Event, ...]:
    """Split a body into the stream that the same request with `stream` gets, with usage chunk and `[DONE]`.

    Raise `MalformedResponse`.
    """
    with reading():
        body = load_json(whole)
        _check_error(body)
        write = json_writer((whole,))
        return (*(Event(escape_line_ends(write(chunk))) for chunk in chunks_of(operation, body)), Event(DONE))


def renew(data: bytes, answer_id: str, created: int) -> bytes:
    """Return a body, or one event's data, with another id and time; unchanged if it has neither."""
    try:
        body = load_json(data)
    except orjson.JSONDecodeError:
        return data
    if not isinstance(body, dict) or not body.keys() & {"id", "created"}:
        return data
    anew = {"id": answer_id, "created": created}
    return escape_line_ends(json_writer((data,))({key: anew.get(key, value) for key, value in body.items()}))


class OpenAITextAnswer:
    """`OpenAITextAnswer` builds chunks from plain text, for backends that return only text."""

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
        return Event(escape_line_ends(orjson.dumps({**self._head, "choices": [choice]})))

    def start(self) -> Sequence[Event]:
        return [self._choice("", None, role=True)] if self._chat else []

    def delta(self, text: str, tokens: Sequence[Token] = ()) -> Event:
        logprobs = _logprobs(tokens, self._written, chat=self._chat) if tokens else None
        self._written += len(text)
        return self._choice(text, None, logprobs=logprobs)

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
    """Return the logprobs of some tokens, the first of which begins `offset` characters into the text."""
    if chat:
        content = [
            {**_token_logprob(token), "top_logprobs": [_token_logprob(other) for other in token.alternatives]}
            for token in tokens
        ]
        return {"content": content, "refusal": None}
    lengths = [0, *(len(token.text) for token in tokens)]
    return {
        "tokens": [token.text for token in tokens],
        "token_logprobs": [token.logprob for token in tokens],
        "top_logprobs": [{other.text: other.logprob for other in token.alternatives} for token in tokens],
        "text_offset": [offset + before for before in accumulate(lengths[:-1])],
    }


def _token_logprob(token: Token) -> dict[str, Any]:
    return {"token": token.text, "logprob": token.logprob, "bytes": list(token.text.encode())}


def embeddings(vectors: Sequence[Sequence[float]], model: str, *, base64: bool) -> bytes:
    """Return an embeddings response. With `base64` the vectors are little-endian float32, as the official client
    requests them."""

    def packed(vector: Sequence[float]) -> str | list[float]:
        return encode_vector(vector) if base64 else np.asarray(vector, dtype="<f4").tolist()

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
