"""What a call asks of a model that writes text. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gateway.errors import Unfit

MAX_STOPS, MAX_STOP_CHARACTERS = 16, 256
MAX_TOP_LOGPROBS = 20  # as OpenAI's protocol has it
# What changes the answer in a way that a plain text model has no part in. Each may stand there with these values.
NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "n": (1,),
    "best_of": (1,),
    "tools": ([],),
    "functions": ([],),
    "response_format": ({"type": "text"},),
    "modalities": (["text"],),
    "audio": (),
    "echo": (False,),
    "suffix": ("",),
    "logit_bias": ({},),
}


@dataclass(frozen=True, slots=True)
class Sampling:
    """How the next token is chosen. `temperature` 0: the likeliest; `top_k` 0: among all; `seed` None: by chance."""

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0


@dataclass(frozen=True, slots=True)
class Asked:
    """`messages` of a conversation, or a `prompt` that is to be gone on with: one of the two."""

    messages: tuple[Mapping[str, str], ...]
    prompt: str | None
    sampling: Sampling
    stop: tuple[str, ...]
    max_tokens: int | None  # None: as many as the model's owner lets it
    logprobs: int | None  # how many of the likeliest tokens are told beside each one; None: none, nor the token's own


def asked_of(body: Mapping[str, Any], max_tokens: int | None, usual: Sampling) -> Asked:
    """Of the body of an OpenAI chat completion or completion. `usual`: what holds where the body does not say. Raises
    `Unfit` on what a plain text model cannot do, and on values of the wrong kind."""
    for field, values in NEUTRAL.items():
        if body.get(field) is not None and body[field] not in values:
            raise Unfit(f"'{field}' is not supported by the model on this machine, expected it left out", param=field)
    chat = "messages" in body
    return Asked(
        messages=tuple(_message(i, message) for i, message in enumerate(body["messages"])) if chat else (),
        prompt=None if chat else _prompt(body.get("prompt")),
        sampling=_sampling(body, usual),
        stop=_stops(body.get("stop")),
        max_tokens=max_tokens,
        logprobs=_logprobs(body, chat=chat),
    )


def _message(index: int, message: Mapping[str, Any]) -> dict[str, str]:
    """With its texts joined: what a template is given."""
    content = message.get("content")
    if message.get("tool_calls") or message.get("function_call"):
        where = f"messages[{index}]"
        raise Unfit(f"'{where}' calls a tool, which the model on this machine cannot, expected text", param=where)
    if isinstance(content, Sequence) and not isinstance(content, str):
        if any(part.get("type") != "text" for part in content):
            where = f"messages[{index}].content"
            raise Unfit(f"'{where}' has parts that the model on this machine cannot read, expected text", param=where)
        content = "\n".join(part["text"] for part in content)
    return {"role": str(message["role"]), "content": content or ""}


def _prompt(prompt: Any) -> str:
    if not isinstance(prompt, str):
        raise Unfit("'prompt' is read as one string by the model on this machine, expected that", param="prompt")
    return prompt


def _sampling(body: Mapping[str, Any], usual: Sampling) -> Sampling:
    seed = body.get("seed")
    if seed is not None and type(seed) is not int:
        raise Unfit("'seed' is of the wrong type: expected an integer", param="seed")
    return Sampling(
        temperature=_number(body, "temperature", usual.temperature, 0.0, 2.0),
        top_p=_number(body, "top_p", usual.top_p, 0.0, 1.0),
        top_k=int(_number(body, "top_k", usual.top_k, 0.0, 2**31)),
        seed=None if seed is None else seed & (2**64 - 1),
        presence_penalty=_number(body, "presence_penalty", usual.presence_penalty, -2.0, 2.0),
        frequency_penalty=_number(body, "frequency_penalty", usual.frequency_penalty, -2.0, 2.0),
    )


def _number(body: Mapping[str, Any], field: str, usual: float, low: float, high: float) -> float:
    value = body.get(field)
    if value is None:
        return usual
    if type(value) not in (int, float) or not low <= value <= high:
        said = f"'{field}' is of the wrong type or out of range: expected a number from {low:g} to {high:g}"
        raise Unfit(said, param=field)
    return float(value)


def _stops(value: Any) -> tuple[str, ...]:
    stops = [value] if isinstance(value, str) else [] if value is None else value
    if not isinstance(stops, list) or len(stops) > MAX_STOPS or not all(_is_stop(stop) for stop in stops):
        raise Unfit(
            f"'stop' is of the wrong type: expected a string or at most {MAX_STOPS} of them, each of 1 to "
            f"{MAX_STOP_CHARACTERS} characters",
            param="stop",
        )
    return tuple(stops)


def _is_stop(stop: Any) -> bool:
    return isinstance(stop, str) and 0 < len(stop) <= MAX_STOP_CHARACTERS


def _logprobs(body: Mapping[str, Any], *, chat: bool) -> int | None:
    """Chats have a switch and a number beside it, completions a number."""
    wanted = body.get("logprobs")
    if wanted is None or wanted is False:
        return None
    beside = body.get("top_logprobs") or 0 if chat else wanted
    if type(beside) is not int or not 0 <= beside <= MAX_TOP_LOGPROBS:
        raise Unfit(
            f"the number of log probabilities is out of range: expected an integer from 0 to {MAX_TOP_LOGPROBS}",
            param="top_logprobs" if chat else "logprobs",
        )
    return beside
