"""The languages that the cross-encoder speaks, and whether a text is in one of them. Pure.

It was trained on English alone, and the model that lent its layers reads little else. In another language its opinion
is noise: the pair keeps the first opinion, whose threshold is stricter.

The test needs no model. A script other than Latin decides at once. In Latin script function words decide, because
nearly every question has some. A text without any of them is taken for English, unless its letters have accents.
"""

from __future__ import annotations

import re

from gateway.words import LETTERS

LANGUAGES = frozenset({"en"})  # ISO 639-1 codes of the cross-encoder's training texts

MAX_CHARACTERS = 2048  # of a text that are looked at; the cross-encoder reads no longer ones
MAX_FOREIGN_SHARE = 0.2  # of letters in other scripts: an English question may quote a foreign word

_ACRONYM = re.compile(r"\b[A-Z]{2,}\b")
_LATIN_END = 0x250  # Latin letters with their European accents come before it
_SPANISH_MARKS = frozenset("¿¡")

# Function words. Those of English and of another language ("in", "was", "me", "no") prove nothing, and are left out. So
# is "y", which is a name in mathematics.
_ENGLISH_WORDS = """
the of to and are were be been does did can could should would shall may might must have has had i you she it they my
your his her its our their him us them this that these those what which who whom whose when where why how at by for
from with without about into if or but not there here than then any some all please explain write tell give show
between vs
"""

# A line or more each: German, Spanish, French, Italian, Portuguese, Dutch, Polish, Swedish, Turkish.
_FOREIGN_WORDS = """
der man das den dem des ein eine einen einem einer eines und oder aber ist sind bin bist waren wird werden wurde kann
kannst können muss müssen soll darf ich du er sie wir ihr mich dich mir dir sich mein meine meinen meinem meiner dein
deine nicht kein keine keinen wie wo wann warum wer wen wem welche welcher welches welchen wieviel für mit von vom zum
zur bei beim nach aus auf über unter zwischen ohne als wenn dass ob auch noch nur bitte gibt ins
el los las una unos unas pero está están ser estar hay tengo tiene puedo puede debo yo tú ella ellos mi mis su sus
qué cuál cuáles quién cuándo dónde cómo cuánto cuánta cuántos cuántas que cual quien cuando donde como cuanto del al
en con por para sobre entre sin se lo le les muy más desde hasta
la un une et ou mais est sont je tu il elle nous vous ils mon ma mes ton ta notre votre leur pas quel quelle quels
quelles quoi qui quand où comment pourquoi combien avec dans sur sans chez au aux ce cette ces
gli uno ed è sono hai che chi dove quando perché quanto quanti quale quali della delle dei degli dello nel nella di da
non mio mia
os uma um é são não meu minha seu sua quais onde porque posso faço com dos na nos nas pelo pela em ao
het een van zijn ik jij wij mijn jouw niet geen wat waar wanneer waarom welke hoeveel voor naar uit bij
jest są nie jak gdzie kiedy dlaczego który jaki czy można moje mój och att det är hur vad när vilken jag inte ett ve
bir bu nasıl nerede nedir mı için hangi
"""

_ENGLISH, _FOREIGN = frozenset(_ENGLISH_WORDS.split()), frozenset(_FOREIGN_WORDS.split())


def reads(text: str) -> bool:
    """Return whether the cross-encoder speaks the language of the text, as far as a few words tell."""
    text = text[:MAX_CHARACTERS]
    # Capitals in other text are an acronym: "EST" is no form of "to be".
    if _ACRONYM.search(text) and not text.isupper():
        text = _ACRONYM.sub(" ", text)
    text = text.lower()
    words = LETTERS.findall(text)
    english = sum(map(_ENGLISH.__contains__, words))
    if text.isascii():
        return sum(map(_FOREIGN.__contains__, words)) <= english
    letters = "".join(words)
    if sum(letter >= chr(_LATIN_END) for letter in letters) > MAX_FOREIGN_SHARE * len(letters):
        return False
    foreign = sum(map(_FOREIGN.__contains__, words)) + 2 * (not _SPANISH_MARKS.isdisjoint(text))
    return foreign < english or (foreign == english and letters.isascii())
