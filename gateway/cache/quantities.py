"""Read numbers with their units, currencies and times of the day. Pure.

Two texts with the same number and other units ask for other things: "30 s" and "30 ms", "9 am" and "9 pm". The project
compiled the names from the SI brochure and grammar books; none comes from a data set.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from gateway.cache.exclusive_words import UNITS, by_first_word, word_set

MAX_QUANTITIES = 64  # of one text

_MORE = by_first_word(
    "us \u03bcs microsecond microseconds|ns nanosecond nanoseconds|ms millisecond milliseconds msec|bit bits|"
    "kbit kilobit kilobits|mbit megabit megabits|gbit gigabit gigabits|kib|mib|gib|tib|pb petabyte petabytes|"
    "kbps|mbps mbit/s|gbps|kwh|mwh|wh|mah|ah|ohm ohms|farad farads|newton newtons|hp horsepower|rpm|"
    "db decibel decibels|khz kilohertz|mhz megahertz|ghz gigahertz|nm nanometer nanometers|"
    "\u03bcm micrometer micrometers micron microns|"
    "\u03bcg mcg microgram micrograms|quart quarts|cl|dl|fl|stone|ha|knot knots|kcal|kj|ppm|ppb|px pixel pixels|pt|"
    "em|rem|dpi|fps|moles|bps|bp|basis|kmh km/h|m/s|c|f|a.m|p.m|thousand k|million millions mio|billion billions bn|"
    "trillion|hpa|kpa|mmol|"
    "pfund|franken chf|peso pesos|yuan cny rmb|won krw|pounds_sterling gbp|uhr|stunde stunden heure heures hora "
    "horas|minuten minutos|sekunden segundos secondes|tage jours d\u00edas|wochen semaines semanas|monate mois "
    "meses|jahre ans "
    "a\u00f1os|meilen millas milles|kil\u00f3metros kilom\u00e8tres|metros m\u00e8tres|pouces pulgadas zoll|pieds pies|"
    "gramos grammes gramm|kilos"
)
_NAMES: Mapping[str, str] = {
    **UNITS, **_MORE, "kbyte": "kb", "mbyte": "mb", "gbyte": "gb", "tbyte": "tb", "c": "celsius", "f": "fahrenheit",
    "$": "dollar", "\u20ac": "euro", "\u00a3": "gbp", "\u00a5": "yen", "\u20b9": "rupee", "%": "percent",
    "\u2030": "permille", "\u00b0": "degree", "\u00b0c": "celsius", "\u00b0f": "fahrenheit", "\u00b0k": "kelvin",
}  # fmt: skip
# Units whose case says which of two they are. Small letters alone may mean either.
_CASED: Mapping[str, str] = {
    "mW": "milliwatt", "MW": "megawatt", "mV": "millivolt", "MV": "megavolt", "mA": "milliampere", "MA": "megaampere",
    "Mb": "mbit", "MB": "mb", "Mbps": "mbps", "MBps": "mb/s", "MB/s": "mb/s", "Mb/s": "mbps", "Gb": "gbit", "GB": "gb",
    "Kb": "kbit", "kb": "kbit", "kB": "kb", "KB": "kb", "Tb": "tbit", "TB": "tb", "W": "watt", "V": "volt",
    "kV": "kilovolt", "A": "ampere", "N": "newton", "kN": "kilonewton", "J": "joule", "mg": "mg", "Mg": "megagram",
    "mm": "mm", "Mm": "megametre", "mPa": "millipascal", "MPa": "megapascal", "m": "m", "M": "million",
    "mHz": "millihertz",
    "MHz": "mhz", "mw": "", "mv": "", "ma": "", "mpa": "", "g": "g", "G": "billion", "s": "second", "S": "",
    "mJ": "millijoule", "MJ": "megajoule", "mN": "millinewton", "MN": "meganewton", "nm": "nm", "Nm": "newtonmetre",
    "mol": "mol", "K": "", "k": "", "b": "bit", "B": "byte", "T": "", "t": "ton", "h": "hour", "H": "henry",
}  # fmt: skip
# Written the same for two units, or for a unit and a word.
_EITHER = (frozenset({"lb", "gbp"}), frozenset({"degree", "celsius"}), frozenset({"degree", "fahrenheit"}),
           frozenset({"m", "minute"}), frozenset({"m", "million"}), frozenset({"kbit", "kb"}),
           frozenset({"kilos", "kg"}))  # fmt: skip

_DAYTIMES = by_first_word(
    "am a.m morning a.m. morgens vormittags fr\u00fch matin ma\u00f1ana madrugada mattina mattino manh\u00e3 rano "
    "\u0443\u0442\u0440\u0430|"
    "pm p.m afternoon evening night tonight abends nachmittags nachts soir soir\u00e9e apr\u00e8s-midi tarde noche "
    "sera "
    "pomeriggio noite wieczorem \u0432\u0435\u0447\u0435\u0440\u0430 \u043d\u043e\u0447\u0438 \u0434\u043d\u044f|"
    "noon midday mittags mediod\u00eda midi|midnight mitternacht medianoche minuit"
)
_BETWEEN = word_set(
    "o'clock oclock in the at uhr h hrs hours heures heure horas hora de la du di del da "
    "\u0447\u0430\u0441\u043e\u0432 \u0447\u0430\u0441\u0430 of o clock"
)
_EAST_ASIAN_DAYTIMES = {"\u5348\u524d": "am", "\u4e0a\u5348": "am", "\uc624\uc804": "am",
                        "\u5348\u5f8c": "pm", "\u4e0b\u5348": "pm", "\uc624\ud6c4": "pm"}  # fmt: skip

_QUANTITY = re.compile(
    r"(\u5348\u524d|\u4e0a\u5348|\uc624\uc804|\u5348\u5f8c|\u4e0b\u5348|\uc624\ud6c4)?([$\u20ac\u00a3\u00a5\u20b9])? ?"
    r"(?<![\w.])(\d{1,15}(?:[.,:]\d{1,9}){0,4}) ?-?"
    r"(\u00b0 ?[CFKcfk]\b|[%\u2030\u00b0$\u20ac\u00a3\u00a5\u20b9]|[AaPp]\.? ?[Mm]\b|[^\W\d_]+(?:/[^\W\d_]+)?)?"
)
_NEXT = re.compile(r"[\w.'-]+")
MAX_BETWEEN = 40  # characters between a number and the time of the day


def quantities_in(text: str) -> Mapping[str, frozenset[str]]:
    """Return the units of each number that has one, by the number without separators of thousands."""
    quantities: dict[str, set[str]] = {}
    for match in list(_QUANTITY.finditer(text))[:MAX_QUANTITIES]:
        daytime, currency, number, written = match.groups()
        units = quantities.setdefault(number.replace(",", ""), set())
        if daytime:
            units.add(_EAST_ASIAN_DAYTIMES[daytime])
        if currency:
            units.add(_NAMES[currency])
        if written and (unit := _unit_of(written)):
            units.add(unit)
        if len(number) <= 5 and (time := _daytime_behind(text[match.end(3) : match.end(3) + MAX_BETWEEN])):
            units -= {"uhr", "stunde", "hour"}
            units.add(time)
    return {number: frozenset(units) for number, units in quantities.items() if units}


def _unit_of(written: str) -> str:
    """Return the name of a unit; empty if it is none, or is ambiguous."""
    if written in _CASED:
        return _CASED[written]
    low = written.lower().replace(" ", "")
    if low.replace(".", "") in ("am", "pm"):
        return low.replace(".", "")
    return _NAMES.get(low, "")


def _daytime_behind(text: str) -> str | None:
    """Return the time of the day that follows a number: 8 Uhr abends, 7 o'clock in the morning."""
    for word in _NEXT.findall(text.lower())[:5]:
        if word in _DAYTIMES:
            return _DAYTIMES[word]
        if word not in _BETWEEN:
            return None
    return None


def have_other_units(mine: Mapping[str, frozenset[str]], other: Mapping[str, frozenset[str]]) -> bool:
    """Return whether a number has units in both texts, and none in common."""
    return any(
        mine[number].isdisjoint(other[number])
        and not any(mine[number] & either and other[number] & either for either in _EITHER)
        for number in mine.keys() & other.keys()
    )
