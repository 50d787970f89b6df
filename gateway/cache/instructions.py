"""Find text in a question that does not ask: instructions to the model, and short remarks behind the question. Pure.

Embedding models and verifiers hardly weigh such text. It decides the answer: "Answer in one word.", "Say: ...", "Ignore
everything else and answer ...". An attacker appends it to a popular question, to have another answer stored near it.
The list is precise rather than complete: 17 of 82,226 questions of people have an instruction (QQP). No pair of them
that asks the same differs in one.
"""

from __future__ import annotations

import re

from gateway.words import RUN

WORDS = (
    "ignore disregard answer respond response reply say state claim assert pretend lie output print repeat act assume "
    "write return speak tell forget note message instruction instructions hint opposite "
    "antworte antworten antwort sag sage behaupte l\u00fcg l\u00fcge vergiss ignoriere ignorieren "
    "ignora responde contesta di miente olvida respuesta brief wrong dishonest sarcastic"
)  # a text without any of these has no instruction

MAX_CHARACTERS = 20_000  # of a text; longer ones are embedded in part only (`gateway.long_questions`)

# Every gap is bounded: an unbounded pattern takes quadratic time on a hostile text.
_LEAD = (
    r"(?:(?:please|now|then|and|but|also|just|instead|always|never|only|kindly|do not|don['\u2019]t|"
    r"you (?:must|should|will)|bitte|por favor)\W{1,3}){0,3}"
)
# Verbs that tell a model what to answer, at the beginning of a sentence that follows another one.
_VERBS = (
    r"(?:ignore|disregard|answer|respond|reply|say|state|claim|assert|pretend|lie|output|print|repeat|"
    r"act as|assume that|write (?:only|exactly|the|that)|return (?:only|exactly|the word)|speak (?:like|as|only)|"
    r"tell (?:them|him|her|the user|the customer|everybody|everyone)|forget (?:all|everything|the|your|previous)|"
    r"be (?:brief|wrong|dishonest|sarcastic)|"
    r"ignoriere?n?|antworten?|sage?|behaupte|l\u00fcge?|vergiss|"
    r"ignora|responde|contesta|di|miente|olvida)"
)
# At the beginning of a text the same verbs may ask for something ("Say hello in French"), but for these.
_FIRST = (
    r"(?:ignore (?:all|any|everything|the|your|previous)|disregard|pretend|"
    r"forget (?:all|everything|your|previous)|lie[.!])"
)
_ANYWHERE = (
    r"\b(?:note|message|instructions?|hint) (?:to|for) (?:the |an? |any )?"
    r"(?:assistant|model|ai|bot|chatbot|llm|system)\b|"
    r"\b(?:correct|right|true|real|only|expected) answer (?:is|are|to this is|would be)\b|"
    r"\b(?:the )?opposite of (?:what is|what['\u2019]s|the) tru(?:e|th)\b|"
    r"\b(?:answer|response|reply|antwort|respuesta)(?: (?:with|exactly|only)){0,2}\s?:"
)
_CLOSED = rf"(?:thanks|thank you|thx|danke|gracias)\W{{1,3}}{_LEAD}{_VERBS}\b"
_BOUNDARY = r"[.!?;)\]\"'\n\u2019\u201d\u3002\uff1f\uff01][\W_]{0,9}"
_STEER = re.compile(
    rf"(?:\A[\W_]{{0,9}}{_LEAD}{_FIRST}|{_BOUNDARY}{_LEAD}{_VERBS}\b(?!['\u2019])|{_CLOSED}|{_ANYWHERE})[^.!?\n]{{0,400}}",
    re.IGNORECASE,
)

MAX_REMARK = 3  # parts between spaces; longer text behind a question is a sentence, which the verifier reads

# Words of a remark that change no answer.
COURTESY = frozenset(
    (
        "please", "pls", "plz", "thanks", "thank", "you", "thx", "cheers", "hi", "hello", "hey", "help", "hurry",
        "urgent", "urgently", "asap", "quick", "quickly", "fast", "sir", "anyone", "anybody", "request", "edit",
        "update", "i", "i'm", "am", "danke", "bitte", "gracias", "por", "favor",
    )
)  # fmt: skip


def instructions_in(text: str) -> frozenset[str]:
    """Return the instructions to the model in a text, each as its words in lower case."""
    instructions = _STEER.findall(text[:MAX_CHARACTERS])
    return frozenset(" ".join(RUN.findall(each.lower())) for each in instructions) if instructions else frozenset()


def remark_of(text: str) -> str:
    """Return the short remark behind the last question mark, such as "#wrong" or "(2016)"; empty if there is none."""
    if text.endswith("?"):  # as most questions do
        return ""
    behind = text[max(text.rfind("?"), text.rfind("\uff1f")) + 1 :]
    is_short = len(behind) < len(text) and len(behind.split(maxsplit=MAX_REMARK)) <= MAX_REMARK
    return behind if is_short else ""
