"""What a call will take of a limit, before it is made; put right when it has been. Pure."""

from __future__ import annotations

from gateway.messages import Call

# OpenAI's rule of thumb for English text; bytes, so that other scripts are not taken for much cheaper than they are.
BYTES_A_TOKEN = 4
FIRST_GUESS = 256  # output tokens, while nothing has been seen


def input_tokens(call: Call) -> int:
    """At least 1. What is no text (images, tools) is not seen: the backend's own count puts it right."""
    texts = call.questions if call.operation == "embeddings" else (call.prompt,)
    return max(1, sum(len(text.encode("utf-8", "surrogatepass")) for text in texts) // BYTES_A_TOKEN)


class Typical:
    """How long the answers of a route are: it rises ten times as fast as it falls, and so lies where one answer in
    eleven is longer, by the weight of what they exceed it (an expectile)."""

    __slots__ = ("_tokens",)

    def __init__(self) -> None:
        self._tokens = float(FIRST_GUESS)

    def saw(self, tokens: int) -> None:
        error = tokens - self._tokens
        self._tokens += (0.2 if error > 0 else 0.02) * error

    def output_tokens(self, call: Call) -> int:
        """At most what the client allows."""
        if call.operation == "embeddings":
            return 0
        typical = max(1, round(self._tokens))
        return typical if call.max_tokens is None else min(typical, call.max_tokens)
