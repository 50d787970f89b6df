"""End an Anthropic message at the stop sequences that Anthropic does not accept. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from gateway.dialects.translation.stops import StopText


class MessageStops(StopText):
    """`MessageStops` ends an Anthropic message, whole or event by event."""

    def whole(self, body: dict[str, Any]) -> dict[str, Any]:
        """Return the message, ended at the first sequence. A sequence may reach from one text into the next."""
        if not self:
            return body
        content: list[Any] = []
        for block in body["content"]:
            if self.found is None and block["type"] == "text":
                content.append({**block, "text": self.feed(block["text"])})
            elif self.found is None:
                content += [*self._rest_block(), block]
        content += self._rest_block()
        if self.found is None:
            return {**body, "content": content}
        return {**body, "content": content, "stop_reason": "stop_sequence", "stop_sequence": self.found}

    def _rest_block(self) -> list[dict[str, Any]]:
        rest = self.rest()
        return [{"type": "text", "text": rest}] if rest else []

    def events(self, event: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
        """Yield the events for the next one of a stream."""
        kind, delta = event.get("type"), event.get("delta") or {}
        if not self:
            yield event
        elif kind == "message_delta" and self.found is not None:
            yield {**event, "delta": {**delta, "stop_reason": "stop_sequence", "stop_sequence": self.found}}
        elif kind == "content_block_delta" and delta.get("type") == "text_delta":
            yield {**event, "delta": {**delta, "text": self.feed(delta["text"])}}
        elif not str(kind).startswith("content_block"):
            yield event
        elif self.found is None:
            if kind == "content_block_stop" and (rest := self.rest()):
                yield {**event, "type": "content_block_delta", "delta": {"type": "text_delta", "text": rest}}
            yield event
