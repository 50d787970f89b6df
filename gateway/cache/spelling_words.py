"""Words that say whether case, a sign or an apostrophe means something in a text. Pure.

The project compiled the lists from dictionaries and standards; none comes from a data set. All words are lower case.
"""

from __future__ import annotations

from collections.abc import Mapping

from gateway.cache.exclusive_words import word_set

# Words of every day that are acronyms or symbols in capitals: "it" and "IT", "no" and "NO". In small letters they are
# the word, also in a text without any capital.
WORDS_AND_ACRONYMS = word_set(
    "it us who is as at am an be by co do go ha he hi id if in me my no of oh on or pa so to up we all and any "
    "are can did had has her him his its let may not now off one our out own per put she the two use was way yes "
    "you der die das im um er es la le el un une il de et si se te tu ma sa ni son con por que mit den dem"
)

# Words with another meaning in capitals, whatever the text around them: "polish" and "Polish". In questions with other
# words only their case is compared, as people write most names in either case.
TOLD_APART = word_set("it us who polish china turkey reading jordan chile jersey guinea")

# Units that differ in case: mW and MW, mm and Mm, g and G, Pa and pA. People who write in small letters mean megabytes
# by "mb", and there is no other unit for "kw".
CASED_UNITS = word_set("mw mv ma mpa mm mg mn mj mhz mol nm pm fm pa m g k b s t p h c f n d j l q r mbps kbps gbps")

# Letters that are no word: variables, constants, notes, sizes, flags.
LETTERS = word_set("b c d f g h j k l m n p q r s t v x")

NAMES: Mapping[str, frozenset[str]] = {
    # A letter behind these is a name, which a text in small letters writes small.
    "before a letter": word_set(
        "vitamin hepatitis type plan group class grade model option appendix team section block building gate "
        "terminal learn language programming using in influenza strep rating tier level series schedule form part"
    ),
    "without a second meaning": word_set(
        "monday tuesday wednesday thursday friday saturday sunday january february july september october november "
        "december i'm i've i'll i'd christmas easter english german french spanish italian portuguese russian "
        "japanese chinese korean arabic hindi dutch greek hebrew latin swedish norwegian hungarian romanian bulgarian "
        "czech ukrainian vietnamese indonesian american british european african asian canadian australian indian "
        "mexican brazilian irish france germany spain italy portugal russia india canada australia mexico england "
        "britain ireland scotland austria switzerland belgium netherlands norway sweden denmark finland poland "
        "ukraine hungary romania bulgaria greece egypt israel iran iraq pakistan bangladesh indonesia malaysia "
        "singapore thailand vietnam philippines korea nigeria kenya ethiopia ghana morocco algeria tunisia argentina "
        "colombia venezuela ecuador bolivia paraguay uruguay europe africa asia america london paris rome madrid "
        "lisbon vienna moscow tokyo beijing delhi mumbai bangalore hyderabad chennai kolkata sydney melbourne toronto "
        "vancouver chicago boston seattle miami google facebook youtube instagram twitter whatsapp netflix microsoft "
        "linux javascript github gmail android"
    ),
}

# Words of a question about a mood, or about signs and how they are written.
ABOUT_SIGNS = word_set(
    "emoji emojis emoticon emoticons smiley smileys icon icons symbol symbols sign character characters unicode "
    "mood feel feels feeling feelings felt emotion emotions sentiment face reaction react reacts reacted rate "
    "rating score mean means meaning caption status translate says said sent texted replied replies classify "
    "bedeutet bedeutung heißt stimmung zeichen gefühl humeur signifie dire signe symbole émotion significa "
    "significado ánimo símbolo signo emoção sinal umore simbolo segno znaczy znak nastrój "
    "\u0437\u043d\u0430\u0447\u0438\u0442 \u0437\u043d\u0430\u043a \u0441\u0438\u043c\u0432\u043e\u043b "
    "\u044d\u043c\u043e\u0434\u0437\u0438"
)

# Words of a question about punctuation.
ABOUT_MARKS = ABOUT_SIGNS | word_set(
    "dash dashes hyphen hyphens quote quotes quotation apostrophe apostrophes punctuation key keyboard type minus "
    "mark marks comma period semicolon colon space tiret guillemets gedankenstrich bindestrich anführungszeichen "
    "raya guion comillas"
)

# After these an emoji is a part of the sentence.
LINKING = word_set(
    "is are was be a an the like with of for this to and or use ist sind ein eine der die das mit est un une le "
    "la avec es el una con è é um uma jest"
)

# Contractions that no other word equals without the apostrophe. "its", "were", "well", "hell", "ill", "id", "wed",
# "shed", "lets" and "shell" are words.
CONTRACTIONS = word_set(
    "what's where's when's who's how's why's that's there's here's it'll that'll don't doesn't didn't isn't "
    "aren't wasn't weren't can't couldn't wouldn't shouldn't won't hasn't haven't hadn't mustn't ain't i'm i've "
    "you're you've you'll they're they've they'll we've c'est qu'est n'est j'ai d'accord aujourd'hui"
)

# Words without their accent that another wording of the same question may have instead: Spanish, French, Portuguese,
# Italian and Polish. In questions of the same words their accents count.
WITH_OR_WITHOUT_ACCENT = word_set(
    "que como cual cuales donde cuando quien quienes cuanto cuantos cuanta cuantas por si el mas tu mi se de te "
    "esta estas este a ou la des du sur e da do na ne za sa co ze"
)
