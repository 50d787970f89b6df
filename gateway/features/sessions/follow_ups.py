"""Tell a follow-up from a question of its own: "Can you explain more on this topic?" names nothing new. Pure.

An embedding cannot tell: such a question is far from every topic. So it is told by its words. It is a follow-up
if it points back ("this", "the above"), or if its words stand in the conversation already. So it is if all its words
are of talk about an answer ("example", "explain", "shorter"). The words are English, plus the most
frequent ones in German, Spanish and French.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from enum import IntEnum

from gateway.routing.wordlists import FUNCTION

# A longer text brings something of its own, and so does one with a colon, a quotation or several lines.
MAX_CHARACTERS = 200
_BRINGS_TEXT = re.compile(r"[:\n`\"\u201c\u00ab]")
MAX_EARLIER = 20_000  # characters of the newest turns that are searched
MIN_STEM = 4  # letters; shorter words must match whole

_WORD = re.compile(r"[^\W\d_]+(?:['\u2019-][^\W\d_]+)*")
_WIDE = re.compile(r"[\u3040-\u30ff\u3400-\u9fff]")  # languages without spaces: their words are not known
_TIMES = (
    "week|weekend|month|year|morning|afternoon|evening|night|spring|summer|autumn|fall|winter|time|monday|tuesday|"
    "wednesday|thursday|friday|saturday|sunday|christmas|season|century|decade"
)
_POINTS_BACK = re.compile(
    rf"\b(?:this(?! (?:{_TIMES})\b)|these(?! days\b)|those(?! who\b)|the (?:above|former|latter)|"
    r"(?:of|about|for|by|with|on|in|like|to|than|do|is|was|does|did|after|before|from|without) that(?=[?.,!;]|\s*$)|"
    r"(?:does|did|is|was|can|could|would|will|should) that\b|"
    r"that (?:means|mean|is|was|works|helps|would|could|makes)\b(?! the)|"
    r"(?:your|the) (?:last |previous |first |second |third |earlier )?(?:answer|reply|response|explanation|suggestion|"
    r"example|point|step|list)|(?:as )?(?:mentioned|described|explained) (?:above|before|earlier)|"
    r"dies|diese[mnrs]?|davon|dar\u00fcber|dazu|damit|esto|este|esta|estos|estas|eso|ello|ce|cet|cette|cela|\u00e7a)\b",
    re.IGNORECASE,
)


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Words of talk about an answer: what is asked for, how it is judged, fillers, and the most frequent ones of German,
# Spanish and French.
_TALK = _words(
    """
    explain explains explaining explanation explanations elaborate elaborating elaboration clarify clarification
    expand expanding describe describing description detail details detailed depth further deeper deep dive
    specific specifically example examples instance illustrate illustration illustrations case cases scenario
    scenarios analogy summary summarise summarize sum recap conclude conclusion rephrase reword paraphrase
    repeat restate rewrite redo shorten shorter short brief briefly longer long simplify simpler simple simply
    terms layman beginner plain version continue continuing go going proceed keep carry finish next step steps
    part parts section sections point points list table bullet bullets format draft one ones first second third
    last previous former latter option options answer answers response reply question questions topic topics
    subject subjects matter issue aspect aspects idea ideas concept concepts context theme above below earlier
    before mentioned said say saying tell telling give giving show showing provide providing share write writing
    put name
    mean means meaning understand understood sense clear unclear confused confusing sure certain know think
    thought opinion correct wrong right mistake mistakes error errors check double verify evidence source
    sources reference references resource resources material materials read reading link links learn learning
    study useful important importance significance significant relevant interesting good better best bad worse
    great nice helpful help need advantage advantages disadvantage disadvantages benefit benefits drawback
    drawbacks limitation limitations pro pros con cons strength strengths weakness weaknesses challenge
    challenges risk risks difference differences similar similarity similarities compare comparison alternative
    alternatives exception exceptions impact impacts effect effects implication implications consequence
    consequences application applications apply applied practice practical practically real real-world real-life
    world life everyday use uses used using work works working happen happens reason reasons cause causes kind
    kinds type types way ways thing things something anything everything else another additional extra different
    various common main key major overall general tip tips advice recommend recommendation recommendations
    suggest suggestion suggestions improve improvement improvements change changes add include
    please thanks thank you ok okay yes yeah yep no nope sure well so hmm oh i'd i'm i'll let's let like want
    wanted would love try make makes made get got still really actually maybe perhaps bit little lot lots also
    instead again now then possible able interested curious wonder wondering what's that's it's don't doesn't
    didn't isn't there's how's can't could you'd you've come back quite sorry exactly formal informal polite
    friendly
    erkläre erklären genauer ausführlicher beispiel beispiele mehr thema bitte kannst können könntest du sie mir
    darüber zu zum weiter noch mal einmal kürzer einfacher punkt antwort geben gib nenne auch anderes andere
    este esta ese eso explica explicar explicarme puedes podrías más sobre tema ejemplo ejemplos dame otro otra
    respuesta por favor expliquer explique peux-tu pouvez-vous plus sujet exemple exemples donne donner
    donnez-moi autre détails détail
    """
)


class Reference(IntEnum):
    """How far a question leans on the conversation before it."""

    NONE = 0  # it names something new
    SUBJECT = 1  # it speaks of what was said: its topic is that of the conversation
    ALL = 2  # it names nothing at all: its difficulty, too, is that of the question before it


def reference_of(question: str, earlier: Iterable[str]) -> Reference:
    """Return how far a question leans on its conversation. `earlier` are its texts, newest first."""
    if len(question) > MAX_CHARACTERS or _BRINGS_TEXT.search(question) or _WIDE.search(question):
        return Reference.NONE
    words = {word.lower().replace("\u2019", "'") for word in _WORD.findall(question)}
    new = {word for word in words if word not in FUNCTION and word not in _TALK}
    if not new:
        return Reference.ALL if words else Reference.NONE
    if _POINTS_BACK.search(question) is not None or _all_occur(new, earlier):
        return Reference.SUBJECT
    return Reference.NONE


def _all_occur(words: set[str], texts: Iterable[str]) -> bool:
    """Return whether the newest `MAX_EARLIER` characters have all words, whatever their endings."""
    left, missing = MAX_EARLIER, set(words)
    for text in texts:
        lowered = text[-left:].lower()
        spoken = None
        for word in tuple(missing):
            if len(word) >= MIN_STEM:
                occurs = _stem(word) in lowered
            else:
                spoken = set(_WORD.findall(lowered)) if spoken is None else spoken
                occurs = word in spoken
            if occurs:
                missing.discard(word)
        left -= len(lowered)
        if not missing or left <= 0:
            break
    return not missing


def _stem(word: str) -> str:
    """Return a word without the ending of a plural, a verb or a possessive, at least `MIN_STEM` letters."""
    for ending in ("'s", "ies", "ing", "es", "ed", "s"):
        if word.endswith(ending) and len(word) - len(ending) >= MIN_STEM:
            return word[: -len(ending)]
    return word
