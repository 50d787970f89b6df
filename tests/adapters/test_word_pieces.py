"""What is put together from words is what the tokenizer makes of the whole text."""

from __future__ import annotations

import json
import string
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer
from tokenizers.models import WordPiece
from tokenizers.normalizers import BertNormalizer
from tokenizers.pre_tokenizers import BertPreTokenizer
from tokenizers.processors import TemplateProcessing

from gateway.adapters.onnx import wordpiece_cache
from gateway.adapters.onnx.model_files import MODEL, TOKENIZER_FILE, default_model_dir
from gateway.adapters.onnx.tokenizer import MAX_TOKENS
from gateway.adapters.onnx.wordpiece_cache import WordPieces, takes_words_apart

MOST = 24
TRAPS = Path(__file__).parents[1] / "cache" / "traps.jsonl"
FIXTURES = Path(__file__).parents[1] / "fixtures" / "onnx"


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    """As that of all-MiniLM-L6-v2, with a small vocabulary."""
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    letters = [*string.ascii_lowercase, *string.digits, *string.punctuation]
    pieces = [*letters, *(f"##{each}" for each in letters), "pass", "##word", "reset", "my", "##ing", "don", "un"]
    vocabulary = {piece: at for at, piece in enumerate(dict.fromkeys(special + pieces))}
    made = Tokenizer(WordPiece(vocabulary, unk_token="[UNK]"))
    made.add_special_tokens(special)
    made.normalizer = BertNormalizer(lowercase=True)
    made.pre_tokenizer = BertPreTokenizer()
    around = [(token, vocabulary[token]) for token in ("[CLS]", "[SEP]")]
    made.post_processor = TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=around)
    made.enable_truncation(MOST)
    return made


WRITTEN = st.text(st.sampled_from(string.printable), max_size=40)
WORDS = st.lists(st.sampled_from(["reset", "Password", "don't", "[MASK]", "resetting", "my", "2.5%", "x" * 101])).map(
    " ".join
)


@settings(max_examples=400, deadline=None)
@given(WRITTEN | WORDS | st.text(max_size=20))
@example("Reset my\tpassword,\r\nplease")
@example("my\x00password")
@example("my pass\x1fword")
@example("my " * (MOST - 2))
@example("my " * (MOST - 1))
@example("x" * 200)
@example("")
def test_ids_are_those_of_the_tokenizer(tokenizer: Tokenizer, text: str) -> None:
    pieces = WordPieces(tokenizer, MOST)
    for _ in range(2):  # of words that are learnt, and of words that are known
        ids = pieces.ids(text)
        assert ids is None or ids == tokenizer.encode(text).ids


def test_what_it_is_for_is_read(tokenizer: Tokenizer) -> None:
    assert WordPieces(tokenizer, MOST).ids("Don't reset my\npassword!") is not None


@pytest.mark.parametrize("text", ["na\u00efve", "[MASK] it", "a\x1fb", "my " * MOST, "y" * 101])
def test_the_rest_is_left_to_the_tokenizer(tokenizer: Tokenizer, text: str) -> None:
    assert WordPieces(tokenizer, MOST).ids(text) is None


def test_words_are_kept_within_bounds(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wordpiece_cache, "KEPT_WORDS", 4)
    monkeypatch.setattr(wordpiece_cache, "LONGEST_KEPT", 6)
    pieces = WordPieces(tokenizer, MOST)
    for text in ("a b c", "d e f", "g" * 7):
        assert pieces.ids(text) == tokenizer.encode(text).ids
        assert len(pieces._known) <= 4
    assert "g" * 7 not in pieces._known


def test_a_tokenizer_of_another_kind_is_not_taken_for_one(tokenizer: Tokenizer) -> None:
    assert takes_words_apart(tokenizer)
    cased = Tokenizer.from_str(tokenizer.to_str())
    cased.normalizer = BertNormalizer(lowercase=False)
    assert not takes_words_apart(cased)
    assert not takes_words_apart(Tokenizer.from_file(str(FIXTURES / "generate" / "tokenizer.json")))


def test_the_embedding_models_questions_are_read_as_its_tokenizer_reads_them() -> None:
    path = default_model_dir() / MODEL / TOKENIZER_FILE
    if not path.exists():
        pytest.skip("the embedding model is not built: run `make setup`")
    tokenizer = Tokenizer.from_file(str(path))
    tokenizer.no_padding()
    tokenizer.enable_truncation(MAX_TOKENS)
    assert takes_words_apart(tokenizer)
    pieces = WordPieces(tokenizer, MAX_TOKENS)
    texts = [json.loads(line)["asked"] for line in TRAPS.read_text(encoding="utf-8").splitlines()]
    found = {text: pieces.ids(text) for text in texts}
    assert all(ids is None or ids == tokenizer.encode(text).ids for text, ids in found.items())
    assert sum(ids is not None for ids in found.values()) > 0.9 * len(found)
