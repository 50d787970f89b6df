"""The cross-encoder is asked only about texts in a language that it speaks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gateway.cache.languages import LANGUAGES, MAX_CHARACTERS, reads

TESTS = Path(__file__).parents[1]
WORDINGS = TESTS.parent / "training" / "wordings"


def texts_of(file: str, kind: str | None = None) -> list[str]:
    rows = map(json.loads, (TESTS / "quality" / file).read_text("utf-8").splitlines())
    return [row[key] for row in rows if kind in (None, row["kind"]) for key in ("stored", "asked")]


def test_english_is_its_only_language() -> None:
    assert set(LANGUAGES) == {"en"}


@pytest.mark.parametrize("kind", ["de", "es", "zh"])
def test_questions_in_other_languages_are_left_out(kind: str) -> None:
    wrong = [text for text in texts_of("languages.jsonl", kind) if reads(text)]
    assert not wrong


def test_english_questions_are_read() -> None:
    assert not [text for text in texts_of("traps.jsonl") if not reads(text)]


def test_the_english_wordings_are_read() -> None:
    """None of them chose the word lists."""
    groups = (json.loads(line) for file in WORDINGS.glob("*.jsonl") for line in file.read_text("utf-8").splitlines())
    texts = [text for group in groups for text in group["same"]]
    assert len(texts) > 1000
    assert sum(map(reads, texts)) >= 0.999 * len(texts)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", True),
        ("2021", True),
        ("reset password", True),
        ("Is there a good café near my office?", True),
        ("what does 猫 mean?", True),
        ("What does 'Wie geht es dir?' mean in English, and how do I answer it?", True),
        ("Passwort zurücksetzen", False),
        ("Comment changer mon adresse de livraison ?", False),
        ("Come si cambia la password della posta?", False),
        ("Qual é a população do Brasil?", False),
        ("Hoe zeg ik mijn abonnement op?", False),
        ("Jak zmienić hasło do konta?", False),
        ("Как восстановить пароль?", False),
        ("パスワードを再設定するには？", False),
        ("كيف أغير كلمة المرور؟", False),
        ("如何使用 Excel 的 VLOOKUP 函数？", False),
    ],
)
def test_languages(text: str, expected: bool) -> None:
    assert reads(text) is expected


def test_only_the_head_of_a_long_text_is_looked_at() -> None:
    assert reads("please explain this " * 200 + "wie geht es dir und warum " * 100_000)
    assert not reads("wie geht es dir und warum ist das " * MAX_CHARACTERS)
