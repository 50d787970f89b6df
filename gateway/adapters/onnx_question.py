"""What a call asks of a classifier: one text, and whether the probability of its label is wanted. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from gateway.dialects.translation import TRANSLATIONS
from gateway.errors import BadRequest, Unfit
from gateway.messages import Call

MAX_TOP_LOGPROBS = 20  # as OpenAI's protocol has it
# What changes the answer in a way that a label has no part in. Each may stand there with these values.
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
class Question:
    text: str
    logprobs: int | None = None  # how many of the likeliest labels are told beside the label; None: not even its own


def question_of(call: Call, backend: str) -> Question:
    """The prompt, or the last text of the user, whatever was said before. Raises `Unfit`."""
    body = _as_openai(call, backend)
    for field, values in NEUTRAL.items():
        if body.get(field) is not None and body[field] not in values:
            raise Unfit(f"'{field}' is not supported by the model on this machine, expected it left out", param=field)
    chat = "messages" in body
    return Question(_last_text(body["messages"]) if chat else _prompt(body.get("prompt")), _logprobs(body, chat=chat))


def _as_openai(call: Call, backend: str) -> Mapping[str, Any]:
    """The body of the call as OpenAI's clients would have said it. Raises `Unfit`."""
    if call.dialect.name == "openai":
        return call.body
    translation = TRANSLATIONS.get((call.dialect.name, "openai"))
    if translation is not None:
        try:
            body: dict[str, Any] = orjson.loads(translation(call, model=None, created=0).outgoing.body)
        except BadRequest as refused:
            raise Unfit(refused.message, param=refused.param) from None
        return body
    if not call.prompt:
        raise Unfit(f"backend '{backend}' reads text, and the {call.dialect.name} call has none for it")
    return {"tools": call.body.get("tools"), "messages": [{"role": "user", "content": call.prompt}]}


def _last_text(messages: Sequence[Mapping[str, Any]]) -> str:
    place = next((at for at in reversed(range(len(messages))) if messages[at]["role"] == "user"), None)
    if place is None:
        return ""
    content = messages[place].get("content")
    if isinstance(content, Sequence) and not isinstance(content, str):
        if any(part.get("type") != "text" for part in content):
            where = f"messages[{place}].content"
            raise Unfit(f"'{where}' has parts that the model on this machine cannot read, expected text", param=where)
        return "\n".join(part["text"] for part in content)
    return content or ""


def _prompt(prompt: object) -> str:
    if not isinstance(prompt, str):
        raise Unfit("'prompt' is read as one string by the model on this machine, expected that", param="prompt")
    return prompt


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
