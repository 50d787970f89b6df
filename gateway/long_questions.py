"""Split a long question into the part that asks and the rest, which must be equal for a semantic hit. Pure.

An embedding model reads a bounded input: all-MiniLM-L6-v2 reads 256 tokens. A vector of the first tokens would equal
that of any text with the same beginning. So only a short part of a long question is embedded and compared by meaning.
The rest belongs to the scope, like the turns before the question: it has to be equal but for spaces.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from hashlib import sha256

from gateway.text_forms import fold_spaces
from gateway.words import RUN

MAX_WHOLE = 1_000  # characters; longer questions are split. 256 tokens of English have 900 to 1,200 characters
MAX_READ = 400_000  # characters; a longer question has no semantic lookup. Reading one of this length takes 5 ms
MAX_FOCUS = 400  # characters of the part that is embedded: at most half of a model's input
_OPENING = 600  # characters in which instructions for the text stand
_BEFORE = 200  # characters before the asking part, where they may stand, too

# Labels in front of a question, as programs write them: English, German, Spanish.
_LABEL = re.compile(r"(?:^|[\s>])(?:(?:user )?question|query|q|frage|pregunta)\s?:\s{1,9}", re.IGNORECASE)
_ANSWER = re.compile(r"\s{1,9}(?:(?:final |your |helpful )?answer|a|response|antwort|respuesta)\s?:$", re.IGNORECASE)
_SENTENCE_END = re.compile(r"[.!?:;\u3002\uff01\uff1f][\"')\]\u201d\u2019]{0,3}\s{1,9}")
_ENDS_ASKING = re.compile(r"[?\uff1f][\"')\]\u201d\u2019]{0,3}$")
_BEGINS_ASKING = re.compile(
    r"\W{0,9}(?:(?:please|now|finally|then|also|and|so|bitte)\W{1,3}){0,2}(?:what|which|who|whom|whose|when|where|why|how|"
    r"list|name|give|tell|explain|describe|state|find|identify|compare|suggest|recommend|decide|show|say|answer|"
    r"was|welche[rsnm]?|wer|wann|wo|warum|wie|nenne|erkl\u00e4re|"
    r"qu\u00e9|cu\u00e1l|qui\u00e9n|cu\u00e1ndo|d\u00f3nde|c\u00f3mo|nombra|explica)\b",
    re.IGNORECASE,
)
# Instructions to work on the text itself: then its last sentence is no question, but a part of the text.
# The beginnings of such verbs, which may also have other endings.
_REWORKING = (
    "translat", "summari", "summary", "rewrit", "rephras", "reword", "paraphras", "proofread", "classif", "categori",
    "extract", "shorten", "simplif", "transcri", "translit", "reformat", "anonymi", "redact", "spell", "grammar",
    "sentiment", "repeat", "verbatim", "tokeni", "polish", "improv", "continu", "count", "revers", "encod", "decod",
    "uppercase", "lowercase", "format", "convert",
    "\u00fcbersetz", "zusammenf", "fass", "korrigier", "umschreib", "formulier", "klassifi",
    "traduc", "traduz", "resum", "corrig", "corrij", "reescrib", "clasific",
)  # fmt: skip
_REWORKING_THE = re.compile(
    r"\b(?:(?:correct|complete|edit|label|tag|fix|copy|finish)\s{1,3}"
    r"(?:the|this|these|my|all|any|each|every|following)|word for word)\b"
)
_FENCE = "```"


@dataclass(frozen=True, slots=True)
class SplitQuestion:
    """A long question in two parts. `focus` is None if there is nothing to embed."""

    focus: str | None  # at most `MAX_FOCUS` characters
    rest: bytes  # digest of all that must be equal, 32 bytes; empty if `focus` is None


NOT_READ = SplitQuestion(None, b"")


def split_question(text: str) -> SplitQuestion:
    """Split a question of more than `MAX_WHOLE` characters.

    The focus is the part that asks, at the end or at the beginning. A text without such a part has to be equal as a
    whole. So does a text that is to be translated, summarised and so on. The focus then only names it in the index.
    """
    if len(text) > MAX_READ:
        return NOT_READ
    folded = fold_spaces(text)
    if not folded:
        return NOT_READ
    part = asking_part(folded)
    if part is None:
        return SplitQuestion(folded[:_BEFORE].strip(), _digest(b"whole", folded))
    start, end = part
    return SplitQuestion(folded[start:end].strip(), _digest(b"around", folded[:start], folded[end:]))


def asking_part(text: str) -> tuple[int, int] | None:
    """Return start and end of the part that asks, or None if there is none that can be worded differently."""
    if _reworks(text[:_OPENING]):
        return None
    end = len(text)
    answer = _ANSWER.search(text, max(0, end - _BEFORE))
    end = end if answer is None else answer.start()
    start = _last_question(text, end)
    if start is not None:
        inside_code = text.count(_FENCE, 0, start) % 2 == 1 or _FENCE in text[start:end]
        return None if inside_code or _reworks(text[max(0, start - _BEFORE) : end]) else (start, end)
    return _first_question(text)


def _last_question(text: str, end: int) -> int | None:
    """Return the start of the question at the end: after a label, in the last line, or the last sentence."""
    earliest = max(0, end - MAX_FOCUS)
    labels = [match.end() for match in _LABEL.finditer(text, earliest, end)]
    if labels:
        return labels[-1] if labels[-1] < end else None
    line = text.rfind("\n", 0, end) + 1
    if line > earliest and _asks(text[line:end]):
        return line
    starts = [match.end() for match in _SENTENCE_END.finditer(text, max(earliest, line), end)]
    if not starts or starts[-1] >= end or not _ENDS_ASKING.search(text[starts[-1] : end]):
        return None
    return starts[-1]


def _first_question(text: str) -> tuple[int, int] | None:
    """Return the bounds of the question at the beginning: the first line, or the first sentence."""
    line = text.find("\n", 0, MAX_FOCUS)
    if line > 0:
        return (0, line) if _asks(text[:line]) else None
    sentence = _SENTENCE_END.search(text, 0, MAX_FOCUS)
    if sentence is None or not _ENDS_ASKING.search(text[: sentence.end()].rstrip()):
        return None
    return 0, sentence.end()


def _reworks(text: str) -> bool:
    """Return whether the text asks to work on a text itself."""
    lower = text.lower()
    # Looking for the parts first is five times as fast as reading the words, and they seldom occur.
    if any(verb in lower for verb in _REWORKING) and any(map(_begins_reworking, RUN.findall(lower))):
        return True
    return _REWORKING_THE.search(lower) is not None


def _begins_reworking(word: str) -> bool:
    return word.startswith(_REWORKING)


def _asks(line: str) -> bool:
    return _ENDS_ASKING.search(line) is not None or _BEGINS_ASKING.match(line) is not None


def _digest(kind: bytes, *parts: str) -> bytes:
    digest = sha256(kind)
    for part in parts:
        data = part.encode("utf-8", "surrogatepass")
        digest.update(len(data).to_bytes(8, "big"))
        digest.update(data)
    return digest.digest()
