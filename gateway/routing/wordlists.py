"""Word lists for the features of a prompt: its task, its form, its subject.

The words are English, plus the most frequent ones in German, Spanish and French.
"""

from __future__ import annotations

from collections.abc import Mapping


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


FUNCTION = _words(
    "a an the of in on at to by for with from as is are was were be been being am and or but if then than so nor that "
    "this these those there here it its he she his her him hers they their them i me my mine you your yours we us our "
    "who whom whose which what when where why how do does did done has have had having not no can could will would "
    "may might shall should must all any each every both either some such same other another more most less least few "
    "much many very own over under between into through during before after above below about against out off up down "
    "again once only too also just because while until s t d ll re ve der die das und ist ein eine el la los las un "
    "una y de que en le les et des du est une"
)
BECAUSE = _words("because since unless if only when")
VERDICTS = _words("yes no true false not guilty valid invalid wrong correct")

KINDS: Mapping[str, frozenset[str]] = {
    "negation": _words(
        "not no never none neither nor without cannot except false incorrect unless isn't doesn't don't didn't wasn't "
        "aren't can't won't wouldn't nicht kein keine nie ohne ning\u00fan nunca sin jamais sans"
    ),
    "superlative": _words(
        "best most main primary primarily likely strongest greatest major least first highest lowest"
    ),
    "following": _words("following above below these statement statements option options"),
    "condition": _words(
        "if suppose assume assuming unless given provided whether let when would could were case wenn falls "
        "angenommen si cuando lorsque"
    ),
    "quantity": _words(
        "all every each only some any exactly both either total per twice half times double triple third quarter "
        "remaining rest left altogether together average percent number amount many much sum difference fewer equally "
        "either dozen"
    ),
    "comparison": _words(
        "more less fewer greater higher lower larger smaller increase increases increased increasing decrease "
        "decreases decreased decreasing rise rises fall falls than faster slower longer shorter older younger bigger "
        "cheaper"
    ),
    "sequence": _words(
        "then next finally second after before later again until first afterwards also addition each dann danach "
        "zuerst schlie\u00dflich luego despu\u00e9s primero finalmente puis ensuite enfin"
    ),
    "logic": _words(
        "therefore thus hence implies imply argument arguments fallacy premise premises conclusion valid proposition "
        "tautology predicate logic contradiction inference follows necessarily deduce"
    ),
    "calculate": _words(
        "calculate compute find determine solve evaluate derive prove proof show equation integral derivative theorem "
        "matrix eigenvalue eigenvalues polynomial probability remainder divisible function value area volume velocity "
        "acceleration force energy angle triangle integers integer primes prime induction squared formula sequence "
        "graph gradient distribution variance inequality vertices berechne beweise beweis l\u00f6se calcula demuestra "
        "resuelve d\u00e9montrez prouvez calculez"
    ),
    "reasoning": _words(
        "why explain compare contrast analyse analyze evaluate justify critique criticise implications diagnose "
        "reason reasons assess discuss critically argue interpret trade-offs tradeoffs differences difference "
        "consequences methodology hypotheses hypothesis rank warum erkl\u00e4re erkl\u00e4ren vergleiche "
        "begr\u00fcnde analysiere explica compara analiza justifica diferencias expliquez comparez analysez pourquoi"
    ),
    "planning": _words(
        "design plan strategy optimise optimize architecture migrate migration schema schedule budget roadmap "
        "experiment experiments scale distributed constraints requirements alternatives alternative risk risks "
        "rollback entwirf plane dise\u00f1a concevez"
    ),
    "code": _words(
        "python java javascript rust c++ sql html css bash shell function class def return import print code program "
        "algorithm script api kubernetes docker regex bug debug refactor compile stack recursion recursive array "
        "arrays loop database query select join thread threads async asyncio cache unit test tests pod deploy "
        "exception programa programm funktion"
    ),
    "constraint": _words(
        "must should exactly without format json csv xml table markdown bullet paragraphs paragraph words sentences "
        "lines limit limited maximum minimum most least order sorted keys rounded ignoring include including avoid "
        "keep genau mindestens h\u00f6chstens debe exactamente"
    ),
    "create": _words(
        "write draft compose story poem essay blog email e-mail letter describe imagine pretend act role create "
        "invent suggest summarise summarize rewrite translate schreibe escribe \u00e9cris r\u00e9dige"
    ),
    "wording": _words(
        "translate spell synonym synonyms opposite rhyme rhymes say mean meaning define definition stands called term "
        "refers known correct grammar name word \u00fcbersetze traduce traduis bedeutet significa"
    ),
    "courtesy": _words(
        "hello hi hey thanks thank please bye goodbye ok okay good morning evening sorry welcome hallo danke bitte "
        "hola gracias bonjour merci tag"
    ),
    "service": _words(
        "order orders account password invoice delivery parcel card refund subscription cancel return address login "
        "reset opening hours open close shop store ship booking reservation alarm timer remind play rechnung passwort "
        "pedido factura contrase\u00f1a colis commande"
    ),
    "person": _words(
        "man woman patient client student pupils defendant plaintiff owner seller buyer he she his her wife husband "
        "child boy girl friend friends brother sister mother father son daughter employee worker workers doctor "
        "police"
    ),
    "law": _words(
        "court law statute liable liability contract jury defendant plaintiff judgment motion constitution "
        "constitutional crime convicted negligence clause tenant landlord testimony witness guilty murder deed lease "
        "damages property sued action amendment"
    ),
    "economics": _words(
        "price prices cost costs demand supply market profit inflation interest tax rate rates curve monopolist "
        "output money equilibrium gdp fiscal monetary bonds wages spending dollar dollars euros"
    ),
    "nature": _words(
        "force mass speed velocity charge current voltage circuit field wave waves light pressure temperature heat "
        "energy atom electron acid reaction gene genes dna cell cells protein orbit planet star frequency resistance "
        "magnetic gas liquid momentum gravity molecule"
    ),
    "medicine": _words(
        "patient disease symptoms diagnosis treatment blood clinical syndrome cancer infection muscle nerve heart "
        "pain dose drug year-old vitamin therapy mechanism"
    ),
    "past": _words(
        "century war king empire emperor president treaty revolution ancient period bc ad ago dynasty colonial "
        "passage excerpt author civilization"
    ),
    "belief": _words(
        "moral morally ethics god religion religious philosophy according theory believes claims argues rights "
        "society culture virtue utilitarian"
    ),
    "unit": _words(
        "kg g m cm mm km s ms n j w v hz mol k ml l percent degrees hours hour minutes minute days day weeks week "
        "months years year miles feet inches pounds ohms liters cents"
    ),
}
