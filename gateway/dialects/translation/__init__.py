"""Translate calls for a backend that speaks another dialect, and its responses back. Pure.

Fields that the other dialect cannot express are refused if they would change the response, and left out otherwise.
docs/protocols.md lists both.
"""

from __future__ import annotations

from collections.abc import Mapping

from gateway.dialects.translation.chat_as_message import ChatAnswer
from gateway.dialects.translation.message_as_chat import MessageAnswer
from gateway.messages import Translation

# (the client's dialect, the backend's)
TRANSLATIONS: Mapping[tuple[str, str], Translation] = {
    ("openai", "anthropic"): MessageAnswer,
    ("anthropic", "openai"): ChatAnswer,
}
