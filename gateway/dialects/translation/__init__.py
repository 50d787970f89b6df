"""Calls of one dialect before a backend that speaks another, and their answers on the way back. Pure.

What the other dialect cannot say is refused where the answer would be another one than was asked for, and left out
where it would not; docs/protocols.md lists both."""

from __future__ import annotations

from collections.abc import Mapping

from gateway.dialects.translation.chat_as_message import ChatAnswer
from gateway.dialects.translation.message_as_chat import MessageAnswer
from gateway.ports import Translation

# (the client's dialect, the backend's)
TRANSLATIONS: Mapping[tuple[str, str], Translation] = {
    ("openai", "anthropic"): MessageAnswer,
    ("anthropic", "openai"): ChatAnswer,
}
