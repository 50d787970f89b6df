"""Decide whether the lightest model is tried first, and compute the confidence in its answer. Pure.

Confidences are in [0, 1] and differ in meaning between checks. None of them is a calibrated probability that the answer
is right. `nearhit_cascade_total` and audits show the effect of `accept_above` on a route.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from gateway.calls import Call
from gateway.features.cascade.rule import Check

# Minimum temperature of extra samples. Self-consistency was measured with it (Wang et al., "Self-Consistency Improves
# Chain of Thought Reasoning in Language Models", ICLR 2023, section 3.1: GPT-3 and PaLM at 0.7).
SAMPLE_TEMPERATURE = 0.7

# A looping model repeats itself: in an answer of at least LOOP_WORDS words, fewer than half of all runs of four words
# are distinct.
LOOP_WORDS, NGRAM, MIN_DISTINCT = 40, 4, 0.5

MAX_CHECKED_CHARACTERS = 20_000  # of an answer: 5 ms

OPERATIONS = frozenset({"chat.completions", "completions", "messages"})  # whose answers are usually text

OPENING = 200  # characters at an answer's start, where a refusal is searched

_REFUSAL = re.compile(
    r"\b(?:i(?:'m| am) sorry, but|i(?: can(?:'t|not)|'m unable| am unable|'m not able| am not able) (?:to )?"
    r"(?:help|assist|answer|provide|do that|comply|access|browse)|as an ai(?: language)? model)\b"
)

_UNCERTAINTY = re.compile(
    r"\b(?:i (?:do not|don't) know|i(?:'m| am) not (?:sure|certain)|i (?:do not|don't) have (?:enough )?information|"
    r"(?:it is|it's) not possible to (?:say|tell|determine)|cannot be determined)\b"
)


def is_applicable(check: Check, call: Call, *, judged: bool) -> bool:
    """Return whether the check can judge the answer to such a call. If `judged`, a model grades the answer."""
    body = call.body
    if call.stateful:  # a trial and its escalation would be two calls
        return False
    if check == "schema":
        return bool(call.dialect.demanded_form(call))
    if call.operation not in OPERATIONS or (body.get("n") or 1) > 1:
        return False
    if body.get("tools") or body.get("functions") or "audio" in (body.get("modalities") or ()):
        return False
    if check != "verifier":
        return True
    return call.question is not None and (judged or not wants_json(body))


def wants_json(body: Mapping[str, Any]) -> bool:
    form = body.get("response_format")
    return isinstance(form, dict) and form.get("type") in ("json_object", "json_schema")


def token_confidence(logprobs: Sequence[float]) -> float | None:
    """Return the geometric mean of the tokens' probabilities; None without tokens.

    It is the sequence's likelihood normalised by length ("Chow-Average" in Gupta et al., "Language Model Cascades:
    Token-level Uncertainty and Beyond", ICLR 2024). Without normalisation long answers would always be doubted. With it
    one doubtful token among many is hard to see, as that paper shows, and a fixed format (JSON) raises the confidence.
    """
    if not logprobs:
        return None
    return math.exp(min(0.0, math.fsum(logprobs) / len(logprobs)))


def agreement(agrees: Iterable[bool]) -> float | None:
    """Return the share of the other samples that agree with the answer; None without other samples.

    An undecided comparison counts as no agreement.
    """
    votes = list(agrees)
    return sum(votes) / len(votes) if votes else None


def sample_call(call: Call, number: int) -> Call:
    """Return the call for sample `number`, from 1: not streamed, hot enough to differ, and with another seed."""
    body = {key: value for key, value in call.body.items() if key not in ("stream", "stream_options")}
    temperature = body.get("temperature")
    if temperature is not None and temperature < SAMPLE_TEMPERATURE:
        body["temperature"] = SAMPLE_TEMPERATURE
    if isinstance(seed := body.get("seed"), int):
        body["seed"] = seed + number
    return replace(call, body=body, stream=False)


def is_non_answer(question: str, answer: str) -> bool:
    """Return whether the answer is obviously none.

    That is an empty answer, the repeated question, a loop, or a refusal or "I don't know" at its start (English only).
    """
    text = " ".join(answer[:MAX_CHECKED_CHARACTERS].casefold().replace("\u2019", "'").split())
    if not text or text == " ".join(question.casefold().split()):
        return True
    opening = text[:OPENING]
    return bool(_REFUSAL.search(opening) or _UNCERTAINTY.search(opening)) or is_repetitive(text)


def is_repetitive(text: str) -> bool:
    words = text.split()
    if len(words) < LOOP_WORDS:
        return False
    ngrams = [tuple(words[i : i + NGRAM]) for i in range(len(words) - NGRAM + 1)]
    return len(set(ngrams)) < MIN_DISTINCT * len(ngrams)
