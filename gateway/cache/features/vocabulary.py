"""Closed word lists for the features. The project compiled them from grammar books; none comes from a data set.

All words are lower case. Most are English; German and Spanish words are added where one word decides the answer.
"""

from __future__ import annotations

from collections.abc import Mapping

from gateway.cache.exact_parts import CARDINALS
from gateway.cache.lexical import OPPOSITES as COMMON_OPPOSITES


def _words(text: str) -> list[str]:
    return text.split()


def _groups(text: str) -> list[str]:
    return text.split("|")


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

UNITS = {
    alias: names.split()[0]
    for names in _groups(
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
    for alias in names.split()
}

CALENDAR = {
    alias: names.split()[0]
    for names in _groups(
        "january jan januar enero|february feb februar febrero|march m\u00e4rz marzo|april apr abril|may_|june juni "
        "junio|july juli julio|august aug agosto|september sept septiembre|october oct oktober octubre|november nov "
        "noviembre|december dec dezember diciembre|monday mon montag lunes|tuesday tue dienstag martes|wednesday wed "
        "mittwoch mi\u00e9rcoles|thursday thu donnerstag jueves|friday fri freitag viernes|saturday sat samstag "
        "s\u00e1bado|sunday sun sonntag domingo|today heute hoy|tomorrow morgen ma\u00f1ana|yesterday gestern ayer|"
        "tonight|morning|afternoon|evening|night|noon|midnight|weekend weekends|spring|summer|autumn fall|winter|"
        "daily|weekly|monthly|yearly annually annual|hourly|next|last|previous|am|pm|bc|ad|easter|christmas"
    )
    for alias in names.split()
}

QUANTIFIERS = {
    alias: names.split()[0]
    for names in _groups(
        "all every each always entire whole everyone everything everybody alle siempre todos|some sometimes|"
        "only just_ solely exclusively nur solo|except excluding besides apart|most mostly|few|least|both|either|"
        "none nobody nothing|any_|half|exactly|at_least|single|several|multiple|other another|rarely seldom|often|"
        "first|final|alone|together|nearly "
        "almost|still|again|anymore|already|yet|too_|enough|outside|without ohne sin|"
        "including include inclusive|unless|until|since|during|while|before|after"
    )
    for alias in names.split()
}

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

_MORE_OPPOSITES = (
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


def _opposites() -> dict[str, frozenset[str]]:
    found: dict[str, set[str]] = {word: set(others) for word, others in COMMON_OPPOSITES.items()}
    for pair in _groups(_MORE_OPPOSITES):
        a, b = pair.split()
        found.setdefault(a, set()).add(b)
        found.setdefault(b, set()).add(a)
    return {word: frozenset(others) for word, others in found.items()}


OPPOSITES = _opposites()

# Words that ask for the same thing; each group stands for its first word. Only words that rarely differ are here.
SYNONYMS = {
    alias: group.split()[0]
    for group in _groups(
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
