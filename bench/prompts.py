"""Builds the prompts of `bench.default`: questions of a given length, their paraphrases, near misses and far misses.

The questions are the hand-written wordings of `training/wordings`. Sentences behind a question make it longer. A
question and its paraphrase then have the same sentences. A part of the groups is kept apart for the far misses.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

from bench.protocols import SYSTEM

LENGTHS = (10, 30, 100, 400)  # tokens of a question
SHORTEST, LONGEST = 8, 12  # tokens of a wording that stands for 10
PLAIN_UP_TO = 24  # tokens of a wording that gets sentences behind it
LONGER = 1.3  # times its length that a far question may have
CLOSE = 100  # at this length a verifier serves only the closest wordings: a question is a small part of the text
SHARED = 400  # from this length on, all questions have the same sentences: the gateway embeds only what asks
FAR_PART = 3  # one group of so many is kept for far misses

_SENTENCES = (
    "The old bridge near the mill was painted green last spring.",
    "My neighbour keeps bees and sells the honey at the market.",
    "We moved into a small flat on the third floor in September.",
    "The train was crowded, so most people stood near the doors.",
    "A blue van has been parked in front of the bakery for days.",
    "Our office has large windows and a rather noisy printer.",
    "The concert began late because the singer had missed a flight.",
    "She planted tomatoes, beans and a row of tall sunflowers.",
    "The report has twelve pages and a table at the end.",
    "They repaired the roof after the storm had broken some tiles.",
    "He collects stamps from islands that hardly anybody knows.",
    "The museum opens at ten and has a quiet garden behind it.",
    "I usually drink two cups of coffee before the first meeting.",
    "The river froze in January, which had not happened for years.",
    "Her brother works on a ship that carries fruit to Norway.",
    "The new keyboard is heavier than the one I had before.",
    "A friend of mine teaches chess at a school in the suburbs.",
    "The recipe comes from a cookbook that my aunt gave to me.",
    "Two of the lamps in the corridor have been broken for a week.",
    "The company sends its invoices on the first day of a month.",
    "Nobody knows who left the yellow umbrella in the hall.",
    "The mountain hut has twenty beds and no electric light.",
    "We keep all documents in a shared folder with clear names.",
    "The dog sleeps under the table while the others have dinner.",
    "An engineer measured the noise of the pumps for three nights.",
    "The library has lent out the only copy until the summer.",
    "He runs along the canal on Sundays, even if it rains.",
    "The shop around the corner changed its owner this year.",
    "They store the wood in a dry shed behind the barn.",
    "The team meets on Tuesdays and writes down each decision.",
    "A small crack runs from the window to the ceiling.",
    "The bus stops here every quarter of an hour until midnight.",
    "My phone is three years old and its battery is weak.",
    "The theatre sells the remaining tickets an hour before the play.",
    "She speaks Danish, some Polish and a little Greek.",
    "The storm blew the sand over the road to the harbour.",
    "Each visitor gets a badge and a map at the entrance.",
    "The children built a raft of barrels and old planks.",
    "His first car was a grey estate with a noisy engine.",
    "The clock on the tower has been ten minutes fast since May.",
)

Count = Callable[[str], int]
"""Returns the tokens of a text, as the embedding model counts."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt. `number`: the answer that the endpoint gives."""

    text: str
    number: int


@dataclass(frozen=True, slots=True)
class Group:
    """A stored question, the same in other words, and questions near it that have other answers."""

    stored: Prompt
    paraphrase: Prompt
    near: Prompt


@dataclass(frozen=True, slots=True)
class Wordings:
    """A line of `training/wordings`."""

    same: tuple[str, ...]
    other: tuple[str, ...]


def prose(draw: random.Random, sentences: int) -> str:
    """Return as many different sentences."""
    return " ".join(draw.sample(_SENTENCES, sentences))


def body(prompt: Prompt, *, system: bool, stream: bool = False) -> bytes:
    """Return the request of a prompt. The keys of the caches leave `metadata` out, and the endpoint reads it."""
    messages = [{"role": "system", "content": SYSTEM}] if system else []
    asked = {"model": "bench", "temperature": 0, "messages": [*messages, {"role": "user", "content": prompt.text}]}
    return json.dumps({**asked, "metadata": {"n": prompt.number}} | ({"stream": True} if stream else {})).encode()


def groups_of(written: Sequence[Wordings], length: int, tokens: Count, draw: random.Random) -> Iterator[Group]:
    """Yield candidates of a length, in a random order: one for each line that has fitting wordings."""
    shared = _context(length, tokens, draw)
    for at in draw.sample(range(len(written)), len(written)):
        if at % FAR_PART == 0:
            continue
        same, other = ([text for text in each if _fits(text, length, tokens)] for each in _wordings_of(written[at]))
        if len(same) < 2 or not other:
            continue
        stored, paraphrase = max(combinations(same, 2), key=_overlap) if length == CLOSE else draw.sample(same, 2)
        context = shared if length >= SHARED else _context(length - tokens(stored), tokens, draw)
        texts = [_longer(text, context, length) for text in (stored, paraphrase, draw.choice(other))]
        yield Group(Prompt(texts[0], 2 * at), Prompt(texts[1], 2 * at), Prompt(texts[2], 2 * at + 1))


def far_of(written: Sequence[Wordings], length: int, tokens: Count, draw: random.Random) -> Iterator[Prompt]:
    """Yield questions about other subjects: one wording, or several where one is too short."""
    texts = [text for at in range(0, len(written), FAR_PART) for text in written[at].same]
    fitting = [text for text in texts if _fits(text, length, tokens)]
    for number, first in enumerate(draw.sample(fitting, len(fitting))):
        parts, so_far = [first], tokens(first)
        while length > LENGTHS[0] and so_far < length - PLAIN_UP_TO // 4:
            part = draw.choice(fitting)
            count = tokens(part) - 2  # without the marks of both ends
            if so_far + count <= LONGER * length:
                parts.append(part)
                so_far += count
        context = " ".join(f"{part.rstrip('.?!')}." for part in parts[1:])
        yield Prompt(_longer(first, context, length), 2 * len(written) + number)


def _overlap(pair: tuple[str, str]) -> float:
    """Return the share of words that two texts have in common."""
    first, second = ({word.strip(".?!,").lower() for word in text.split()} for text in pair)
    return len(first & second) / len(first | second)


def _wordings_of(written: Wordings) -> tuple[Sequence[str], Sequence[str]]:
    return written.same, written.other


def _fits(text: str, length: int, tokens: Count) -> bool:
    count = tokens(text)
    return SHORTEST <= count <= LONGEST if length == LENGTHS[0] else count <= PLAIN_UP_TO


def _context(length: int, tokens: Count, draw: random.Random) -> str:
    """Return sentences of about `length` tokens; none for fewer than those of half a sentence."""
    chosen, so_far, rest = list[str](), 0, list[str]()
    while so_far < length - PLAIN_UP_TO // 4:
        rest = rest or draw.sample(_SENTENCES, len(_SENTENCES))
        chosen.append(rest.pop())
        so_far += tokens(chosen[-1]) - 2
    return " ".join(chosen)


def _longer(question: str, context: str, length: int) -> str:
    """Return the question with a text behind it. In a long prompt it has a line of its own."""
    if not context:
        return question
    end = "" if question[-1] in ".?!" else "?"
    return f"{question}{end}{chr(10) * 2 if length >= SHARED else ' '}{context}"
