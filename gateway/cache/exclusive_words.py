"""Closed classes of words that exclude each other: opposites, units of measure, and parts of the calendar.

Two questions that differ in one such word ask for other things. The project compiled the lists from grammar books; none
comes from a data set. All words are lower case. Most are English; German and Spanish words are added where one word
decides the answer.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable


def groups(text: str) -> list[str]:
    """Return the groups of a list in which `|` separates them."""
    return text.split("|")


def word_set(text: str) -> frozenset[str]:
    """Return the words of a list in which spaces separate them."""
    return frozenset(text.split())


def by_first_word(text: str) -> dict[str, str]:
    """Return for each word of a list of groups the first word of its group."""
    return {word: group.split()[0] for group in groups(text) for word in group.split()}


def _symmetric(pairs: Iterable[Iterable[str]]) -> dict[str, frozenset[str]]:
    opposites: dict[str, set[str]] = {}
    for a, b in pairs:
        opposites.setdefault(a, set()).add(b)
        opposites.setdefault(b, set()).add(a)
    return {word: frozenset(others) for word, others in opposites.items()}


# The most frequent opposites in questions to assistants. One of them anywhere in a text makes it another question.
_COMMON = (
    ("on", "off"), ("enable", "disable"), ("open", "close"), ("increase", "decrease"), ("raise", "lower"),
    ("start", "stop"), ("add", "remove"), ("install", "uninstall"), ("buy", "sell"), ("before", "after"),
    ("first", "last"), ("more", "less"), ("most", "least"), ("best", "worst"), ("good", "bad"), ("up", "down"),
    ("left", "right"), ("minimum", "maximum"), ("min", "max"), ("high", "low"), ("higher", "lower"),
    ("fast", "slow"), ("cheap", "expensive"), ("import", "export"), ("upload", "download"), ("encode", "decode"),
    ("encrypt", "decrypt"), ("lock", "unlock"), ("login", "logout"), ("send", "receive"), ("lend", "borrow"),
    ("win", "lose"), ("gain", "lose"), ("love", "hate"), ("true", "false"), ("above", "below"), ("inside", "outside"),
    ("old", "new"), ("oldest", "newest"), ("hot", "cold"), ("advantages", "disadvantages"), ("pros", "cons"),
    ("ascending", "descending"), ("push", "pull"), ("show", "hide"), ("accept", "reject"), ("legal", "illegal"),
    ("man", "woman"), ("men", "women"), ("male", "female"), ("boy", "girl"), ("north", "south"), ("east", "west"),
    ("always", "never"), ("everyone", "nobody"), ("with", "without"), ("input", "output"), ("public", "private"),
)  # fmt: skip
COMMON_OPPOSITES = _symmetric(_COMMON)

_MORE = (
    "allow forbid|allowed forbidden|attach detach|begin end|bigger smaller|bigger tiny|boil freeze|borrow return|"
    "bright dark|cause cure|cause prevent|causes prevents|cheapest expensive|clockwise counterclockwise|"
    "connect disconnect|correct incorrect|create delete|create destroy|credit debit|day night|dead alive|deep shallow|"
    "deposit withdraw|deposit withdrawal|earliest latest|early late|easy difficult|easy hard|easier harder|empty full|"
    "enter exit|enter leave|entrance exit|expand shrink|expand collapse|export import|fail "
    "pass|fail succeed|faster slower|"
    "fastest slowest|fat thin|forward backward|friend enemy|front back|gain lose|gained lost|grow shrink|happy sad|"
    "healthy unhealthy|heat cool|heating cooling|heavy light|hide unhide|highest lowest|hire fire|husband wife|"
    "include exclude|including excluding|increase reduce|indoor outdoor|indoors outdoors|interior exterior|internal "
    "external|join leave|landlord tenant|large small|larger smaller|largest smallest|lend borrow|lengthen shorten|"
    "like dislike|load unload|long short|longer shorter|longest shortest|loosen tighten|loose tight|mother father|"
    "mount unmount|mute unmute|near far|nearest farthest|offline online|older younger|oldest youngest|open shut|"
    "optimistic pessimistic|parent child|pause resume|permanent temporary|plus minus|positive negative|possible "
    "impossible|prefix suffix|present absent|profit loss|profitable unprofitable|quiet loud|rich poor|richest poorest|"
    "right wrong|rise fall|rising falling|safe dangerous|safe unsafe|same different|sender receiver|sender recipient|"
    "serialize deserialize|shallow deep|shorter taller|simple complex|sit stand|smooth rough|soft hard|son daughter|"
    "strength weakness|strengths weaknesses|strong weak|stronger weaker|strongest "
    "weakest|subscribe unsubscribe|sunrise "
    "sunset|sweet sour|take give|take_off land|tall short|tallest shortest|teacher student|temporary permanent|thick "
    "thin|top bottom|upgrade downgrade|upper lower|uppercase lowercase|vertical "
    "horizontal|wake sleep|warm cold|warmer "
    "colder|wet dry|wide narrow|winner loser|young old|zip unzip|block unblock|follow unfollow|pin unpin|archive "
    "unarchive|freeze unfreeze|activate deactivate|authorize revoke|approve deny|approve reject|grant revoke|commit "
    "revert|compress decompress|employer employee|buyer seller|arrive depart|arrival departure|arrivals departures|"
    "checkin checkout|insert delete|insert remove|lost found|max minimum|maximize minimize|odd even|solid liquid|"
    "sync async|synchronous asynchronous|static dynamic|valid invalid|visible "
    "invisible|legal illegal|ending beginning|"
    "an aus|ein aus|mit ohne|con sin|abrir cerrar|\u00f6ffnen schlie\u00dfen|aktivieren "
    "deaktivieren|activar desactivar|"
    "kaufen verkaufen|comprar vender|subir bajar|m\u00e1s menos|\u5f00 \u5173|\u4e70 \u5356"
)

_PAIRS = [*_COMMON, *(group.split() for group in groups(_MORE))]
OPPOSITES = _symmetric(_PAIRS)

# Opposites that the features do not know. They settle it only if they are the one difference between two texts.
_FURTHER = (
    "millisecond second|milliseconds seconds|"
    "to from|to past|over under|closed opened|columns rows|brother sister|closing opening|disabling enabling|"
    "ends starts|column row|anything nothing|nobody somebody|nobody someone|disabled enabled|gross net|her his|"
    "arrive leave|read write|closes opens|begins ends|biggest smallest|end start|decrypted encrypted|king queen|"
    "decreases increases|everything nothing|exports imports|falls rises|better worse|answer ask|"
    "cheapest costliest|he she|northern southern|summer winter|evening morning|always sometimes|creditor debtor|"
    "newer older|eastern western|fewer more|fewest most|sold bought|sells buys|selling buying|lent borrowed|"
    "lending borrowing|sent received|sends receives|won lost|wins loses|winning losing|arrived departed|"
    "arrived left|increased decreased|raised lowered|raises lowers|added removed|installed uninstalled|"
    "exported imported|exporting importing|uploaded downloaded|uploading downloading|loved hated|"
    "accepted rejected|pushed pulled|shown hidden|ascend descend|"
    "until since|till since|plus times|minus times|sum product|sum difference|product quotient|add subtract|"
    "and or|and but|or but|and with|or with|for against|in out|into out|onto off|to through|all some|all none|all no|"
    "all most|most few|most some|some none|some no|any no|every no|enough more|both either|both neither|either neither|"
    "must may|must can|must should|must might|my your|my his|my her|my their|my this|our their|his their|her their|"
    "how why|how when|when why|when where|when who|where who|where why|who why|half quarter|hundred thousand|"
    "hundred million|thousand million|million billion|single double|double triple|single triple|once twice|"
    "twice thrice|once thrice|greater less|greater smaller|equal unequal|"
    "addition subtraction|multiply divide|multiplied divided|multiplication division|numerator denominator"
)

# Words that relate a thing to a time or a place, each with those that may stand in its place. The neutral ones exclude
# none of each other: people say "in the weekend" and "on the weekend".
_RELATIONS = {
    group.split()[0]: frozenset(group.split()[1:])
    for group in groups(
        "before|after|during in on at|until till to|till until to|since from|into in to|onto on to|under below beneath|"
        "below under beneath|beneath under below|over above on|above over on|beside by at|behind|between of|inside in "
        "within|within in inside|outside|without|via through by with|against|despite|except but|across in over"
    )
}
_NEUTRAL = frozenset(("in", "on", "at", "of", "for", "to", "from", "by", "with", "through", "about", "near"))

_EXCLUSIVE = _symmetric([*_PAIRS, *(group.split() for group in groups(_FURTHER))])

# The word for each unit and each part of the calendar. The keys are all ways to write it.
UNITS = by_first_word(
    "km kilometer kilometers kilometre kilometres|m meter meters metre metres|cm centimeter centimeters|"
    "mm millimeter millimeters|mi mile miles|ft foot feet|inch inches|yd yard yards|kg kilo kilos kilogram "
    "kilograms|g gram grams|mg milligram milligrams|lb lbs pound pounds|oz ounce ounces|ton tons tonne tonnes|"
    "l liter liters litre litres|ml milliliter milliliters|gallon gallons|pint pints|cup cups|tablespoon "
    "tablespoons tbsp|teaspoon teaspoons tsp|celsius centigrade|fahrenheit|kelvin|second seconds sec secs|"
    "minute minutes min mins|hour hours hr hrs|day days|week weeks|month months|year years|decade decades|"
    "century centuries|dollar dollars usd|euro euros eur|yen jpy|rupee rupees inr|gbp|cent cents|byte bytes|"
    "kb kilobyte kilobytes|mb megabyte megabytes|gb gigabyte gigabytes|tb terabyte terabytes|percent|watt watts|"
    "kw kilowatt kilowatts|volt volts|ampere amperes amp amps|hz hertz|joule joules|calorie calories|acre acres|"
    "hectare hectares|mph|kph|degree degrees|radian radians|bar|psi|pascal"
)

CALENDAR = by_first_word(
    "january jan januar enero|february feb februar febrero|march m\u00e4rz marzo|april apr abril|may_|june juni "
    "junio|july juli julio|august aug agosto|september sept septiembre|october oct oktober octubre|november nov "
    "noviembre|december dec dezember diciembre|monday mon montag lunes|tuesday tue dienstag martes|wednesday wed "
    "mittwoch mi\u00e9rcoles|thursday thu donnerstag jueves|friday fri freitag viernes|saturday sat samstag "
    "s\u00e1bado|sunday sun sonntag domingo|today heute hoy|tomorrow morgen ma\u00f1ana|yesterday gestern ayer|"
    "tonight|morning|afternoon|evening|night|noon|midnight|weekend weekends|spring|summer|autumn fall|winter|"
    "daily|weekly|monthly|yearly annually annual|hourly|next|last|previous|am|pm|bc|ad|easter|christmas"
)


_LIGHT = frozenset(("of", "the", "a", "an", "is", "are"))

# Units and days that a text can also mean otherwise: I'm, a bar, a degree in law, I am, to fall, the last of several.
_AMBIGUOUS = frozenset(
    ("m", "l", "g", "bar", "degree", "degrees", "next", "last", "previous", "may_", "march", "am", "ad", "fall")
)


def exclude(mine: Collection[str], other: Collection[str]) -> bool:
    """Return whether words that only one of two texts has, at most two each, ask for other things than the other's.

    Each word needs its opposite, another unit, or another part of the calendar on the other side. Articles and the like
    do not count.
    """
    if len(mine) != len(other):
        mine, other = frozenset(mine) - _LIGHT, frozenset(other) - _LIGHT
    return 0 < len(mine) == len(other) <= 2 and all(any(_excludes(a, b) for b in other) for a in mine)


def _relates_otherwise(a: str, b: str) -> bool:
    """Return whether `a` relates things in a way for which `b` is no other word."""
    return (
        a in _RELATIONS and b not in _RELATIONS[a] and (b in _NEUTRAL or (b in _RELATIONS and a not in _RELATIONS[b]))
    )


def _excludes(a: str, b: str) -> bool:
    if b in _EXCLUSIVE.get(a, ()) or _relates_otherwise(a, b) or _relates_otherwise(b, a):
        return True
    if a in _AMBIGUOUS or b in _AMBIGUOUS:
        return False
    return any(a in names and b in names and names[a] != names[b] for names in (UNITS, CALENDAR))
