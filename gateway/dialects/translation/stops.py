"""End an answer at the stop sequences that the backend's protocol does not accept. Pure.

OpenAI accepts four, Anthropic none of white space alone. The gateway ends the answer at the others itself: the client
gets the text before the first of them, and the backend's usage.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gateway.errors import BadRequest

MAX_OPENAI = 4
MAX_OWN, MAX_LENGTH = 64, 256  # sequences and characters that the gateway looks for: each costs time at each piece


class StopText:
    """`StopText` passes text on until one of the sequences occurs in it. `found` is that one, or None."""

    def __init__(self, sequences: Sequence[str]) -> None:
        if len(sequences) > MAX_OWN or any(len(each) > MAX_LENGTH for each in sequences):
            raise BadRequest(
                f"the stop sequences cannot be translated to the backend's protocol: expected at most {MAX_OWN} more "
                f"than it accepts, each of at most {MAX_LENGTH} characters"
            )
        self._sequences = tuple(dict.fromkeys(sequences))
        self._held = ""  # the end of the text, if a sequence may begin there
        self.found: str | None = None

    def __bool__(self) -> bool:
        return bool(self._sequences)

    def feed(self, text: str) -> str:
        """Return the text that may be passed on."""
        if self.found is not None:
            return ""
        text = self._held + text
        at, sequence = min(((text.find(each), each) for each in self._sequences if each in text), default=(-1, None))
        if sequence is not None:
            self.found, self._held = sequence, ""
            return text[:at]
        overlap = max((_overlap(text, each) for each in self._sequences), default=0)
        self._held = text[len(text) - overlap :]
        return text[: len(text) - overlap]

    def rest(self) -> str:
        """Return the text that was held back, once nothing more can follow it."""
        text, self._held = self._held, ""
        return text


def _overlap(text: str, sequence: str) -> int:
    """Return the length of the longest end of `text` with which `sequence` begins."""
    longest = min(len(text), len(sequence) - 1)
    return next((n for n in range(longest, 0, -1) if text.endswith(sequence[:n])), 0)


class ChatStops(StopText):
    """`ChatStops` ends a chat completion, whole or in chunks. vLLM names the sequence in the same field."""

    def whole(self, choice: dict[str, Any]) -> dict[str, Any]:
        """Return the choice of a whole answer, ended at the first sequence."""
        message = choice["message"]
        if not self or not isinstance(message.get("content"), str):
            return choice
        text = self.feed(message["content"])
        if self.found is None:
            return choice
        ended = {**message, "content": text, "tool_calls": None}
        return {**choice, "message": ended, "finish_reason": "stop", "stop_reason": self.found}

    def chunk(self, chunk: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the next chunk of a stream. Nothing of its choice follows a sequence but its end."""
        if not self or not chunk.get("choices"):
            return chunk
        return {
            **chunk,
            "choices": [choice if choice.get("index") else self._next(choice) for choice in chunk["choices"]],
        }

    def _next(self, choice: Mapping[str, Any]) -> dict[str, Any]:
        delta, ended = {**(choice.get("delta") or {})}, choice.get("finish_reason") is not None
        if isinstance(delta.get("content"), str):
            delta["content"] = self.feed(delta["content"])
        elif delta.get("content") and (rest := self.rest()):  # parts, such as thinking: no sequence reaches into them
            delta["content"] = [{"type": "text", "text": rest}, *delta["content"]]
        if self.found is not None:
            ended_delta = {"content": delta.get("content") or ""}
            return {**choice, "delta": ended_delta, "finish_reason": "stop", "stop_reason": self.found}
        if (ended or delta.get("tool_calls")) and (rest := self.rest()):
            delta["content"] = (delta.get("content") or "") + rest
        return {**choice, "delta": delta}
