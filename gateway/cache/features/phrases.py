"""Find the kind of answer that a question asks for, and its conditions: "what does it *cost*, *for children*". Pure.

The word lists are closed classes of English from grammar books: prepositions and conjunctions, and the words that ask
for a kind of answer. Such a word stands in a sentence ("how much is it") or alone as a key word ("price").
"""

# ruff: noqa: SIM905 (lists of words)
from __future__ import annotations

from collections.abc import Mapping

# Words that open a condition. "of" and "to" belong to the verb, "and" and "or" open another member of a list.
CONDITIONS = frozenset(
    "about above across after against along amid among around as at before behind below beneath beside between beyond "
    "by despite during except for from if in inside into near on onto outside over per since through throughout till "
    "toward towards under unless until using via when whenever where whereas while with within without bei durch "
    "f\u00fcr im in mit nach ohne \u00fcber unter vor wenn con desde durante en hasta para por seg\u00fan si sin "
    "sobre".split()
)
BREAKS = CONDITIONS | frozenset(
    "and or but of to that which who what how why then than is are was were do does".split()
)
MAX_CONDITION_WORDS = 6  # words in one phrase

ASPECTS = {
    word: group.split()[0]
    for group in (
        "cost costs price prices pricing priced fee fees expensive pay charge charged charges worth cheap cheaper "
        "kosten kostet cuesta precio",
        "reason reasons why cause causes caused causing because warum",
        "manner steps step procedure process instructions instruction guide tutorial howto recipe",
        "time when date deadline dates schedule wann cu\u00e1ndo",
        "place where location address located nearby wo d\u00f3nde",
        "person who whom whose wer qui\u00e9n",
        "meaning mean means definition define defined explain explanation explained",
        "comparison difference differences differ differs different vs versus compare compared comparison compares",
        "choice best recommend recommended recommendation recommendations recommendable top which suggest suggestions",
        "permission allowed permitted legal legally permission forbidden prohibited illegal",
        "safety safe safely dangerous danger harmful harm risk risks risky unsafe hurt",
        "necessity need needed needs must required requirement requirements require necessary mandatory",
        "benefit benefits advantage advantages pros upside upsides",
        "drawback drawbacks disadvantage disadvantages cons downside downsides",
        "count many number quantity",
        "frequency often frequency frequently",
        "effect effects happens happen consequence consequences impact result results outcome",
        "sign signs symptom symptoms tell recognise recognize spot",
        "example examples sample samples",
        "alternative alternatives instead substitute substitutes replacement",
        "origin history origins invented discovered invention discovery",
        "trouble broken failing fails failed error errors stuck problem problems issue issues wrong unable",
        "check check verify track status confirm see",
        "limit limit limits maximum minimum max min most least",
    )
    for word in group.split()
}
_PAIRED = {
    ("how", "much"): "cost",
    ("how", "many"): "count",
    ("how", "long"): "duration",
    ("how", "often"): "frequency",
    ("how", "far"): "distance",
    ("how", "old"): "age",
    ("how", "come"): "reason",
    ("what", "time"): "time",
    ("what", "for"): "reason",
    ("can", "i"): "permission",
    ("may", "i"): "permission",
    ("have", "to"): "necessity",
    ("instead", "of"): "alternative",
    ("how", "do"): "manner",
    ("how", "to"): "manner",
    ("how", "can"): "manner",
    ("way", "to"): "manner",
}


_ASPECT_WORDS, _ASPECT_PAIRS = frozenset(ASPECTS), frozenset(_PAIRED)


def aspects(words: frozenset[str], pairs: frozenset[tuple[str, str]]) -> frozenset[str]:
    """Return the kinds of answer that the words ask for, in any position. `pairs` are adjacent words."""
    matched = {ASPECTS[word] for word in words & _ASPECT_WORDS}
    matched.update(_PAIRED[pair] for pair in pairs & _ASPECT_PAIRS)
    return frozenset(matched)


def conditions(
    words: tuple[str, ...], stems: Mapping[str, str], vocabulary: frozenset[str]
) -> tuple[tuple[str, frozenset[str]], ...]:
    """Return (opening word, stems of its content words) for each phrase that limits the question.

    `stems` has the stem of each content word.
    """
    if CONDITIONS.isdisjoint(vocabulary):
        return ()
    matched = []
    opened: str | None = None
    inner: list[str] = []
    for word in (*words, "and"):
        if word in BREAKS or len(inner) >= MAX_CONDITION_WORDS:
            if opened and inner:
                matched.append((opened, frozenset(inner)))
            opened, inner = (word if word in CONDITIONS else None), []
        elif word in stems:
            inner.append(stems[word])
    return tuple(matched)
