"""The same bytes, read by the official clients, which get them from a transport that replays them."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from typing import Any

import anthropic
import httpx2
import openai
from openai.lib.streaming.chat import ChatCompletionStreamState

from tests.wires.forms import compact
from tests.wires.outcomes import (
    NotRight,
    Outcome,
    Received,
    chat_outcome,
    chunks_outcome,
    embeddings_outcome,
    message_outcome,
    response_outcome,
)

ASKED: Mapping[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "?"}]}
KNOWN = 64  # outcomes; a form has some ten
ERRORS = (openai.APIError, anthropic.APIError)


class Replay(httpx2.BaseTransport):
    """`Replay` answers each request with the same bytes."""

    received = Received(500, {}, b"")

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        headers = {name: value for name, value in self.received.headers.items() if name in ("content-type",)}
        return httpx2.Response(self.received.status, headers=headers, content=self.received.body)


class OfficialClients:
    """`OfficialClients` reads what a client received as the official clients do."""

    def __init__(self) -> None:
        self._known: dict[tuple[Any, ...], Outcome] = {}  # most ways of a form give the same bytes
        self._replay = Replay()
        transport = httpx2.Client(transport=self._replay)
        options: dict[str, Any] = {"api_key": "sk-wires", "max_retries": 0, "http_client": transport}
        self._openai = openai.OpenAI(base_url="http://wires/v1", **options)
        self._anthropic = anthropic.Anthropic(base_url="http://wires", **options)
        self._reads: dict[str, Callable[[bool, bool], Outcome]] = {
            "chat": self._chat,
            "completions": self._completions,
            "embeddings": lambda _, __: embeddings_outcome(
                self._openai.embeddings.create(model="m", input="?", encoding_format="base64").to_dict(warnings=False)
            ),
            "responses": self._responses,
            "messages": self._messages,
        }

    def outcome_of(self, dialect: str, received: Received, *, made: bool) -> Outcome:
        """Return the outcome. `made`: the gateway made this form of the answer, so the client's own joining of pieces
        must work, too. Raise `NotRight`."""
        key = (dialect, made, received.status, received.headers.get("content-type"), received.body)
        if key not in self._known:
            if len(self._known) >= KNOWN:
                self._known.clear()
            self._known[key] = self._read(dialect, received, made=made)
        return self._known[key]

    def _read(self, dialect: str, received: Received, *, made: bool) -> Outcome:
        self._replay.received = received
        try:
            with warnings.catch_warnings(action="ignore"):  # pydantic's, about fields that the types do not know
                return self._reads[dialect](received.streamed, made)
        except (openai.APIStatusError, anthropic.APIStatusError) as error:
            said: Any = error.body
            inner = said.get("error", said) if isinstance(said, dict) else said
            message = inner.get("message", inner.get("detail", "")) if isinstance(inner, dict) else str(inner)
            status = {} if received.streamed else {"status": error.status_code}
            return {"error": {**status, "message": message}}
        except ERRORS as error:
            return {"error": {"message": str(error.message)}}
        except Exception as error:  # any other exception of the client is a finding
            raise NotRight(f"the official client raises {type(error).__name__}: {str(error)[:80]}") from error

    def _chat(self, streamed: bool, made: bool) -> Outcome:
        if not streamed:
            return chat_outcome(self._openai.chat.completions.create(**ASKED).to_dict(warnings=False))
        state, chunks = ChatCompletionStreamState(), list[str]()
        with partial_outcome(chunks):
            for chunk in self._openai.chat.completions.create(**ASKED, stream=True):
                chunks.append(compact(chunk.to_dict(mode="json", warnings=False)))
                if made:
                    state.handle_chunk(chunk)
        joined = chunks_outcome(chunks)
        if made and "error" not in joined:
            with suppress(openai.LengthFinishReasonError, openai.ContentFilterFinishReasonError):
                final = chat_outcome(state.get_final_completion().to_dict(warnings=False))
                if final != joined:
                    raise NotRight(f"the official client joins {str(final)[:120]}")
        return joined

    def _completions(self, streamed: bool, _: bool) -> Outcome:
        if not streamed:
            return chat_outcome(self._openai.completions.create(model="m", prompt="?").to_dict(warnings=False))
        chunks = [
            compact(chunk.to_dict(mode="json", warnings=False))
            for chunk in self._openai.completions.create(model="m", prompt="?", stream=True)
        ]
        return chunks_outcome(chunks)

    def _responses(self, streamed: bool, made: bool) -> Outcome:
        if not streamed:
            return response_outcome(self._openai.responses.create(model="m", input="?").to_dict(warnings=False))
        if made:
            with self._openai.responses.stream(model="m", input="?") as events:
                return response_outcome(events.get_final_response().to_dict(warnings=False))
        last: dict[str, Any] = {}
        for event in self._openai.responses.create(model="m", input="?", stream=True):
            last = event.to_dict(warnings=False) if "response" in event.to_dict(warnings=False) else last
        return response_outcome(last["response"])

    def _messages(self, streamed: bool, _: bool) -> Outcome:
        if not streamed:
            return message_outcome(self._anthropic.messages.create(**ASKED, max_tokens=64).to_dict(warnings=False))
        with self._anthropic.messages.stream(**ASKED, max_tokens=64) as events:
            return message_outcome(events.get_final_message().to_dict(warnings=False))


@contextmanager
def partial_outcome(chunks: list[str]) -> Iterator[None]:
    """Turn an error within a stream into a chunk, so that the text before it counts."""
    try:
        yield
    except openai.APIStatusError:
        raise
    except openai.APIError as error:
        chunks.append(compact({"error": {"message": error.message}}))


@cache
def official_clients() -> OfficialClients:
    """Return the clients, which take 100 ms to build."""
    return OfficialClients()
