"""Makes small changes to a real question: some keep its meaning, others make it another question."""

# ruff: noqa: ARG001, E501 (every change has one signature; lists of phrases)
from __future__ import annotations

import random
import re
from collections.abc import Callable

from gateway.cache.exclusive_words import CALENDAR, OPPOSITES, UNITS
from gateway.cache.features.vocabulary import SYNONYMS

Change = Callable[[str, random.Random], str | None]  # None where the text offers nothing to change

ENGLISH = {w: o for w, o in OPPOSITES.items() if w not in ("an", "ein", "con", "sin", "mit", "aus")}
_GROUPS: dict[str, list[str]] = {}
for _alias, _first in SYNONYMS.items():
    if not _alias.endswith("_"):
        _GROUPS.setdefault(_first, []).append(_alias)
_BEFORE = ("please tell me, ", "hi, ", "hello, ", "i was wondering, ", "can you help? ", "quick question: ", "hey, ",
           "could you tell me ", "i'd like to know ", "excuse me, ", "so, ")  # fmt: skip
_AFTER = (" please", " thanks", " thank you", ", can you tell me?", " i need to know", "??", " exactly", " right now")
_SHORT = (("do not", "don't"), ("does not", "doesn't"), ("is not", "isn't"), ("can not", "can't"), ("cannot", "can't"),
          ("what is", "what's"), ("i am", "i'm"), ("i have", "i've"), ("it is", "it's"), ("where is", "where's"),
          ("how is", "how's"), ("i would", "i'd"), ("who is", "who's"), ("did not", "didn't"))  # fmt: skip
_OPENINGS = (
    ("how do i", "how can i", "what's the way to", "what do i need to do to", "how would i", "what should i do to",
     "what are the steps to", "how to", "i want to know how to", "tell me how to"),
    ("what is", "what's", "tell me", "can you tell me", "i need to know", "do you know", "please tell me"),
    ("can i", "is it possible to", "am i able to", "may i", "could i"),
    ("why is", "what is the reason", "how come"),
)  # fmt: skip


def opening(text: str, random_: random.Random) -> str | None:
    low = text.lower()
    for group in _OPENINGS:
        for start in group:
            if low.startswith(start + " "):
                return random_.choice([g for g in group if g != start]) + text[len(start) :]
    return None


def polite(text: str, random_: random.Random) -> str:
    bare = text.rstrip("?.! ")
    return random_.choice(_BEFORE) + text if random_.random() < 0.5 else bare + random_.choice(_AFTER)


def contracted(text: str, random_: random.Random) -> str | None:
    for long, short in _SHORT:
        for a, b in ((long, short), (short, long)):
            if re.search(rf"\b{a}\b", text, re.IGNORECASE):
                return re.sub(rf"\b{a}\b", b, text, count=1, flags=re.IGNORECASE)
    return None


def synonym(text: str, random_: random.Random) -> str | None:
    return _replaced(text, random_, lambda word: [w for w in _GROUPS.get(SYNONYMS.get(word, ""), []) if w != word])


def typo(text: str, random_: random.Random) -> str | None:
    words = list(re.finditer(r"[a-z]{5,}", text))
    if not words:
        return None
    at = random_.choice(words)
    i = random_.randrange(at.start() + 1, at.end() - 1)
    return random_.choice((text[:i] + text[i + 1 :], text[:i] + text[i + 1] + text[i] + text[i + 2 :]))


def spelling(text: str, random_: random.Random) -> str:
    return random_.choice(
        (text.lower(), text.rstrip("?.! "), text.capitalize(), text.rstrip("?. ") + "?", text.upper())
    )


def articles(text: str, random_: random.Random) -> str | None:
    out = re.sub(r"\b(the|a|an) ", "", text, flags=re.IGNORECASE)
    return out if out != text else None


def number(text: str, random_: random.Random) -> str | None:
    found = list(re.finditer(r"\d+", text))
    if not found:
        return None
    at = random_.choice(found)
    value = int(at.group()[:9])
    return (
        text[: at.start()]
        + str(random_.choice((value + 1, value * 10, value + 7, max(0, value - 1))))
        + text[at.end() :]
    )


def unit(text: str, random_: random.Random) -> str | None:
    units = sorted(set(UNITS) - {"min", "m", "l", "g", "bar"})
    return _replaced(text, random_, lambda w: [u for u in units if UNITS[u] != UNITS[w]] if w in units else [])


def date(text: str, random_: random.Random) -> str | None:
    days = sorted(set(CALENDAR) - {"may_", "next", "last", "am", "pm"})
    return _replaced(text, random_, lambda w: [d for d in days if CALENDAR[d] != CALENDAR[w]][:60] if w in days else [])


def opposite(text: str, random_: random.Random) -> str | None:
    return _replaced(text, random_, lambda word: sorted(ENGLISH.get(word, ())))


def negated(text: str, random_: random.Random) -> str | None:
    auxiliary = r"\b(is|are|was|were|can|could|should|will|would|do|does|did|has|have|may|must)\b( (?:i|you|my|the|it|they|we|a))?"
    found = re.search(auxiliary, text, re.IGNORECASE)
    if not found or re.search(r"\bnot\b|n't", text):
        return None
    after = found.end()
    following = (
        re.match(r" \w+", text[after:]) if found.group(2) and found.group(2).strip() in ("my", "the", "a") else None
    )
    after += following.end() if following else 0
    return f"{text[:after]} {random_.choice(('not', 'never', 'no longer', 'not'))}{text[after:]}"


def direction(text: str, random_: random.Random) -> str | None:
    """Turn "from A to B" round; else exchange the things beside "to", "than", "before", "after" or "instead of"."""
    found = re.search(r"\bfrom ((?:my |the |a )?\w+) to ((?:my |the |a )?\w+)", text)
    if found is None:
        found = re.search(r"\b(\w{3,}) (?:to|than|before|after|into|instead of|over) ((?:my |the |a )?\w{3,})", text)
    if found is None or found.group(1) == found.group(2):
        return None
    a, b = found.span(1), found.span(2)
    return text[: a[0]] + found.group(2) + text[a[1] : b[0]] + found.group(1) + text[b[1] :]


_SCOPES = ("only ", "all ", "every ", "none of ", "most of ", "just one of ")
_EXTRAS = (" for my wife", " while i am abroad", " on weekends", " in euros", " before friday", " for a business account",
           " with a fee", " on my old phone", " for someone else", " except on sundays", " in mexico", " without an id",
           " for the last 3 months", " if i am under 18", " by mail", " over the phone", " for the second time",
           " next year", " that was cancelled", " from another bank")  # fmt: skip


def scoped(text: str, random_: random.Random) -> str | None:
    found = list(re.finditer(r"\b(?:my|the|a) (?=\w{3,})", text))
    if found and random_.random() < 0.5:
        at = random_.choice(found)
        return text[: at.start()] + random_.choice(_SCOPES) + text[at.start() :]
    bare = text.rstrip("?.! ")
    return bare + random_.choice(_EXTRAS) + ("?" if text.endswith("?") else "")


_ASKS = ("how do i", "why do i", "when do i", "where do i", "who can", "how often do i", "how much does it cost to",
         "how long does it take to", "should i", "is it safe to", "can someone else", "what happens if i", "what if i cannot")  # fmt: skip


def asks(text: str, random_: random.Random) -> str | None:
    for start in ("how do i ", "how can i ", "can i ", "where do i ", "when do i ", "why do i ", "should i "):
        if text.lower().startswith(start):
            other = [a for a in _ASKS if a.split()[0] != start.split()[0] or len(a.split()) > 3]
            return random_.choice(other) + " " + text[len(start) :]
    return None


def words_swapped(text: str, random_: random.Random) -> str | None:
    """Exchange two words that may be nouns: the same words, with another meaning or none."""
    found = [m for m in re.finditer(r"\b[a-zA-Z]{4,}\b", text) if m.group().lower() not in
             ("what", "when", "where", "which", "does", "have", "with", "from", "this", "that", "will", "would", "could")]  # fmt: skip
    if len(found) < 3:
        return None
    i, j = sorted(random_.sample(range(len(found)), 2))
    a, b = found[i], found[j]
    if a.group().lower() == b.group().lower():
        return None
    return text[: a.start()] + b.group() + text[a.end() : b.start()] + a.group() + text[b.end() :]


def _replaced(text: str, random_: random.Random, others: Callable[[str], list[str]]) -> str | None:
    found = [(m, choice) for m in re.finditer(r"[^\W_]+", text) if (choice := others(m.group().lower()))]
    if not found:
        return None
    at, choice = random_.choice(found)
    return text[: at.start()] + random_.choice(choice) + text[at.end() :]


_TAILS = (" on {weekday}", " in {month}", " in {year}", " for {num} people", " within {num} days", " within {num} weeks",
          " from {city} to {city2}", " at {time}", " for {num} {unita}", " in {country}", " since {year}", " before {weekday}",
          " after {weekday}", " by {month}", " with {num} {unitb}")  # fmt: skip


def tails(slots: dict[str, list[str]], random_: random.Random) -> tuple[str, str]:
    """Return the same kind of condition twice: with one value, and with one of its values changed."""
    tail = random_.choice(_TAILS)
    chosen = {name: random_.choice(fillers) for name, fillers in slots.items()}
    chosen["city2"] = random_.choice([city for city in slots["city"] if city != chosen["city"]])
    other = dict(chosen)
    name = random_.choice([name for name in chosen if f"{{{name}}}" in tail])
    if name.startswith("city"):
        other["city"], other["city2"] = chosen["city2"], chosen["city"]
    else:
        other[name] = random_.choice([filler for filler in slots[name] if filler != chosen[name]])
    if random_.random() < 0.2 and ("before" in tail or "days" in tail):
        turned = tail.replace("before", "after").replace("days", "months")
        return tail.format(**chosen), turned.format(**chosen)
    return tail.format(**chosen), tail.format(**other)


SAME: tuple[Change, ...] = (opening, opening, polite, contracted, synonym, synonym, typo, spelling, articles)
OTHER: tuple[Change, ...] = (number, number, unit, date, opposite, opposite, negated, direction, direction, scoped, asks,
                             words_swapped)  # fmt: skip
