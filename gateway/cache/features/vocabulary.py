"""Closed word lists for the features. The project compiled them from grammar books; none comes from a data set.

All words are lower case. Most are English; German and Spanish words are added where one word decides the answer.
"""

from __future__ import annotations

from collections.abc import Mapping

from gateway.cache.exact_parts import CARDINALS
from gateway.cache.exclusive_words import CALENDAR, UNITS, by_first_word, groups


def _words(text: str) -> list[str]:
    return text.split()


STOP = frozenset(
    _words(
        "a an the this that these those there here it its it's is are was were be been being am do does did done doing "
        "have has had having can could should would will shall may might must of in on at by for "
        "with about into onto to "
        "from as and or but if so than then i me my mine we us our you your yours he him his she "
        "her hers they them their "
        "who whom whose what which when where why how much many please just also too very really "
        "actually some any tell "
        "show give know want need like get got let way ways best possible help explain wondering "
        "wonder find out someone "
        "anyone one's i'd i'm i've i'll what's how's who's where's let's hi hello hey thanks thank "
        "you're could've s t re "
        "ve ll d m not no don doesn didn isn aren won der die das ein eine ist sind ich du wie was "
        "wo wer kann el la los "
        "las un una es son yo como que qu\u00e9 c\u00f3mo puedo de en zu und y o mein meine mi "
        "\u7684 \u5417 \u5462 \u662f "
        "\u6211 \u4e86"
    )
)

NUMBER_WORDS = {word: number for word, number in CARDINALS.items() if word != "one"} | {
    "thirty": "30",
    "forty": "40",
    "fifty": "50",
    "hundred": "100",
    "thousand": "1000",
    "million": "1000000",
    "billion": "1000000000",
    "dozen": "12",
    "twice": "2x",
    "double": "2x",
    "triple": "3x",
    "half": "0.5",
    "first": "1st",
    "second": "2nd",
    "third": "3rd",
    "fourth": "4th",
    "fifth": "5th",
}

QUANTIFIERS = by_first_word(
    "all every each always entire whole everyone everything everybody alle siempre todos|some sometimes|"
    "only just_ solely exclusively nur solo|except excluding besides apart|most mostly|few|least|both|either|"
    "none nobody nothing|any_|half|exactly|at_least|single|several|multiple|other another|rarely seldom|often|"
    "first|final|alone|together|nearly "
    "almost|still|again|anymore|already|yet|too_|enough|outside|without ohne sin|"
    "including include inclusive|unless|until|since|during|while|before|after"
)

COMPARATIVES = frozenset(
    _words(
        "more less most least better worse best worst bigger smaller larger largest smallest biggest cheaper cheapest "
        "faster slower fastest slowest higher lower highest lowest longer shorter longest shortest "
        "older younger oldest "
        "newest newer stronger weaker heavier lighter hotter colder richer poorer safer easier "
        "harder taller earlier later "
        "fewer minimum maximum min max top bottom nearest farthest mehr weniger besser schlechter mejor peor m\u00e1s "
        "menos"
    )
)

PAST = frozenset(_words("did was were had didn't wasn't weren't hadn't used war hatte wurde fue"))
FUTURE = frozenset(_words("will would won't wouldn't shall gonna i'll you'll it'll wird"))
POLAR = frozenset(_words("is are was were do does did can could should will would has have am may ist sind kann darf"))
MODALS = {
    "should": "should",
    "shouldn't": "should",
    "ought": "should",
    "must": "must",
    "have_to": "must",
    "might": "may",
    "may": "may",
    "allowed": "may",
    "legal": "may",
}
PERSONS = {
    "i": "i",
    "my": "i",
    "me": "i",
    "mine": "i",
    "he": "he",
    "his": "he",
    "him": "he",
    "she": "she",
    "her": "she",
    "hers": "she",
    "they": "they",
    "their": "they",
    "them": "they",
    "we": "we",
    "our": "we",
    "us": "we",
}

KINDS: Mapping[str, Mapping[str, str]] = {
    "number": NUMBER_WORDS,
    "unit": UNITS,
    "calendar": CALENDAR,
    "quantifier": QUANTIFIERS,
    "comparative": {word: word for word in COMPARATIVES},
    "tense": dict.fromkeys(PAST, "past") | dict.fromkeys(FUTURE, "future"),
    "modal": MODALS,
    "person": PERSONS,
}
# The meanings of a word, as (kind, meaning).
MEANT = {
    word: [(kind, table[word]) for kind, table in KINDS.items() if word in table]
    for table in KINDS.values()
    for word in table
}
MARKED = frozenset(MEANT)

# Words that ask for the same thing; each group stands for its first word. Only words that rarely differ are here.
SYNONYMS = {
    alias: group.split()[0]
    for group in groups(
        "buy purchase purchasing buying bought|start begin starting beginning|fix repair "
        "repairing fixing solve resolve|"
        "delete remove erase deleting removing|change modify alter edit changing update|phone "
        "telephone cellphone mobile "
        "smartphone|car automobile vehicle|movie film movies films|quick fast quickly rapidly "
        "rapid speedy|big large huge|"
        "make create build making creating|difference differences differ distinguish different|job occupation career|"
        "money cash|doctor physician|child kid children kids|house home|reason cause reasons why|choose pick select|"
        "learn study learning studying|earn earning|happen occur happens occurs|cost price "
        "costs prices|enough sufficient|"
        "end finish|speak talk|error mistake|important essential crucial|effect impact effects|country nation|benefit "
        "advantage benefits advantages pros|drawback disadvantage drawbacks disadvantages "
        "cons|method approach technique|"
        "lady woman|mom mother mum|dad father|picture photo image pictures photos "
        "images|function method_|weight mass_|"
        "travel trip|get obtain receive|cheap inexpensive|store shop|mail email e-mail|maximum "
        "max|minimum min|application "
        "app|password passcode|location place|assist help|bike bicycle|tv television|info information|"
        "usa us_ america u.s|uk britain|laptop notebook|company firm|salary wage pay|ill sick|begin commence|"
        "mean meaning signify|sign_up register|cancel abort|capital_|invent invented "
        "inventor|write wrote written author "
        "writer|found founded founder|discover discovered discoverer|lose lost|grow growing"
    )
    for alias in group.split()
}
