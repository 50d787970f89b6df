"""Loads pairs of real questions, and makes perturbations: banking77 (CC BY 4.0, PolyAI), clinc150 (CC BY 3.0, Clinc)."""

# ruff: noqa: E501, SIM905 (lists of names)
from __future__ import annotations

import csv
import json
import random
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from training import perturb
from training.encoder import Encoder
from training.pair import Pair

# Intents whose questions name no slot (place, amount, person, day): two of one intent ask the same thing.
WITHOUT_SLOTS = frozenset(
    """payday change_user_name who_do_you_work_for what_is_your_name find_phone are_you_a_bot how_old_are_you
    where_are_you_from who_made_you what_can_i_ask_you what_are_your_hobbies do_you_have_pets meaning_of_life fun_fact
    flip_coin change_accent sync_device user_name reset_settings credit_score improve_credit_score credit_limit
    report_lost_card damaged_card new_card replacement_card_duration expiration_date international_fees pin_change
    order_checks direct_deposit taxes w2 income pto_balance pto_request_status pto_used rollover_401k insurance
    insurance_change jump_start tire_pressure tire_change oil_change_how oil_change_when last_maintenance mpg gas gas_type
    current_location plug_type order_status shopping_list todo_list what_song whisper_mode routing application_status
    schedule_maintenance apr next_song freeze_account""".split()
)
SAME_ABOVE = 0.75  # banking77 intents are broader than a question: only near ones of an intent count as the same


def questions(banking: Path, clinc: Path) -> list[tuple[str, str, bool]]:
    """Return (question, intent, whether two of that intent ask the same thing)."""
    with banking.open(encoding="utf-8", newline="") as file:
        found = [(row["text"].strip(), f"banking-{row['category']}", False) for row in csv.DictReader(file)]
    train = json.loads(clinc.read_text(encoding="utf-8"))["train"]
    found += [(text, f"clinc-{intent}", intent in WITHOUT_SLOTS) for text, intent in train]
    return [(text, intent, same) for text, intent, same in found if 3 <= len(text.split()) <= 40]


def perturbed_pairs(
    asked: list[tuple[str, str, bool]], slots: dict[str, list[str]], count: int, random_: random.Random
) -> Iterator[Pair]:
    """Yield pairs of `count` questions: harmless changes, harmful ones, and conditions of two values."""
    for text, intent, _ in random_.sample(asked, count):
        harmless = [new for change in random_.sample(perturb.SAME, 4) if (new := change(text, random_)) and new != text]
        harmful = [(change.__name__, new) for change in random_.sample(perturb.OTHER, 6)
                   if (new := change(text, random_)) and new.lower() != text.lower()]  # fmt: skip
        for new in harmless[:2]:
            yield Pair(text, new, True, "harmless", intent)
        if len(harmless) > 2 and (twice := perturb.polite(harmless[2], random_)):
            yield Pair(harmless[1], twice, True, "harmless", intent)
        for name, new in harmful[:3]:
            yield Pair(text, new, False, name, intent)
        mine, other = perturb.tails(slots, random_)
        bare = text.rstrip("?.! ")
        yield Pair(bare + mine, bare + other, False, "tail", intent)
        if harmless:
            again = harmless[-1].rstrip("?.! ")
            yield Pair(bare + mine, again + other, False, "tail", intent)
            yield Pair(bare + mine, again + mine, True, "tail", intent)
        if harmless and len(harmful) > 3:
            yield Pair(harmless[0], harmful[3][1], False, harmful[3][0], intent)


def mined_pairs(
    asked: list[tuple[str, str, bool]], count: int, encoder: Encoder, random_: random.Random
) -> Iterator[Pair]:
    """Yield real paraphrases (one intent) and the nearest questions of other intents."""
    chosen = random_.sample([a for a in asked if a[2] or a[1].startswith("banking")], count)
    chosen += random_.sample([a for a in asked if not a[2] and a[1].startswith("clinc")], count // 4)
    intents = np.array([intent for _, intent, _ in chosen])
    matrix = np.stack([encoder(text) for text, _, _ in chosen])
    for i, (text, intent, same) in enumerate(chosen):
        near = matrix @ matrix[i]
        others = np.flatnonzero(intents != intent)
        for j in others[np.argsort(-near[others])[:3]]:
            yield Pair(text, chosen[j][0], False, "other-intent", intent)
        mates = [j for j in np.flatnonzero(intents == intent) if j != i and (same or near[j] >= SAME_ABOVE)]
        if same or intent.startswith("banking"):
            for j in random_.sample(mates, min(3, len(mates))):
                yield Pair(text, chosen[j][0], True, "same-intent", intent)
