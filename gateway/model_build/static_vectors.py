"""Distils static token vectors from a sentence encoder: a rough embedding of a text without a forward pass.

The encoder embeds every token of the vocabulary once, alone. Smooth inverse frequency weights the vectors: the weighted
sum of the tokens of a text represents the text. The weighting comes from Arora, Liang and Ma, "A simple but
tough-to-beat baseline for sentence embeddings" (ICLR 2017). The distillation from the vocabulary of an encoder, without
any text, comes from model2vec (Tulkens and van Dongen, 2024).

A ridge regression on some questions maps such a sum to the encoder's own vector of the text. So a static vector can
search an index of real vectors (gateway/features/screen/screen.py). The map of the default model lies next to this
file, because the encoder takes as long for the questions as for the vocabulary (`python -m training.screen_map`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from numpy.typing import ArrayLike, NDArray
from tokenizers import Tokenizer

from gateway.adapters.onnx.encoder import OnnxEncoder
from gateway.adapters.onnx.model_files import (
    STATIC_FILE,
    TOKENIZER_FILE,
    ModelCorrupt,
    ModelMissing,
    load_manifest,
)
from gateway.adapters.onnx.static_encoder import StaticTable, load_table
from gateway.adapters.onnx.tokenizer import TextTokenizer

Progress = Callable[[str], None]
Vectors = NDArray[np.float32]
QUESTIONS = Path(__file__).with_name("questions.txt")  # `python -m training.screen_questions` chooses them
MAP_FILE = Path(__file__).with_name("static_map.npz")  # `python -m training.screen_map` writes it

# The a in a / (a + p). Arora et al. advise 1e-3 to 1e-4. The light model of the demo answered 25 of the 30 questions in
# tests/features/demo/questions.yaml with 1e-2, 27 with 1e-3, 26 with 3e-4 and 25 with 1e-4.
SMOOTHING = 1e-3
FIRST_WORD = "the"  # from here on, BERT's vocabulary lists whole words, the most frequent first
BATCH = 256  # texts of three tokens each: about 2 MB of activations per layer
RIDGE = 1.0  # lambda; .1 to 5 let the same share of misses go
MAX_VOCABULARY = 60_000  # tokens; a larger table would take more than 23 MB of the gateway's memory
MAX_MAGNITUDE = 127  # of an int8


def add_static_vectors(model_dir: Path, progress: Progress) -> bool:
    """Distil `static.npz` into a model's folder, unless it is there. Return whether it is there now.

    It takes some 20 s, half of it for the default model, and no torch. Raise OSError, `ModelMissing` or `ModelCorrupt`.
    """
    if has_static_vectors(model_dir):
        return True
    manifest = load_manifest(model_dir)
    tokenizer = Tokenizer.from_file(str(model_dir / TOKENIZER_FILE))
    tokenizer.no_padding()
    if tokenizer.get_vocab_size() > MAX_VOCABULARY:
        progress(
            f"no static vectors: the vocabulary has {tokenizer.get_vocab_size()} tokens, at most {MAX_VOCABULARY} are "
            "supported, so every question is embedded before it goes to a backend"
        )
        return False
    started = time.monotonic()
    progress("distilling static token vectors from the model (once)")
    reader = TextTokenizer(model_dir / TOKENIZER_FILE, manifest.reading)
    table = distil_table(OnnxEncoder(model_dir, threads=2), tokenizer, reader, manifest.identity)
    with TemporaryDirectory(prefix=".static-", dir=model_dir) as own:
        partial = Path(own) / STATIC_FILE
        table.write(partial)
        partial.replace(model_dir / STATIC_FILE)  # atomic: a reader never sees a partial file
    progress(f"distilled {len(table.tokens)} token vectors in {time.monotonic() - started:.0f} s")
    return True


def has_static_vectors(model_dir: Path) -> bool:
    """Return whether a model's folder has its `static.npz`. Raise `ModelMissing` or `ModelCorrupt` for the model."""
    manifest = load_manifest(model_dir)
    try:
        load_table(model_dir, manifest.identity)
    except (ModelMissing, ModelCorrupt):
        return False
    return True


def distil_table(encoder: OnnxEncoder, tokenizer: Tokenizer, reader: TextTokenizer, model: str) -> StaticTable:
    """Return the static vectors of a model, with their map to its own vectors. `model` is its identity."""
    ids = token_ids(tokenizer)
    vectors = token_vectors(encoder.encode_ids, tokenizer, ids)
    rows = (vectors - vectors.mean(axis=0)) * token_weights(tokenizer, ids)[:, None]
    tokens = np.zeros((vocabulary_size(tokenizer), rows.shape[1]), np.int8)
    scales = np.zeros(len(tokens), np.float32)
    scales[ids] = np.maximum(np.abs(rows).max(axis=1), np.finfo(np.float32).tiny) / MAX_MAGNITUDE
    tokens[ids] = np.rint(rows / scales[ids, None]).astype(np.int8)
    mapping = shipped_map(model)
    if mapping is None:
        mapping = map_of_questions(encoder, reader, tokens, scales)
    return StaticTable(tokens, scales, mapping, model)


def shipped_map(model: str) -> Vectors | None:
    """Return the map in `MAP_FILE`, or None if that is of another model than the one of this identity."""
    with np.load(MAP_FILE) as file:
        return np.asarray(file["mapping"], np.float32) if str(file["model"]) == model else None


def map_of_questions(encoder: OnnxEncoder, reader: TextTokenizer, tokens: NDArray[np.int8], scales: Vectors) -> Vectors:
    """Fit the map of a table's `tokens` and `scales` on `QUESTIONS`, as `fit_map`."""
    questions = QUESTIONS.read_text("utf-8").splitlines()
    sums = np.stack(
        [scales[read] @ tokens[read].astype(np.float32) for read in (reader.read(q).ids for q in questions)]
    )
    real = np.stack([embedding.vector for embedding in encoder.encode(questions)])
    return fit_map(sums, real)


def fit_map(sums: Vectors, real: Vectors) -> Vectors:
    """Return the ridge regression from the unit vectors of `sums`, with a constant 1 after them, to `real`.

    Both have the shape (texts, dimension), the result (dimension + 1, dimension).
    """
    norms = np.maximum(np.linalg.norm(sums, axis=1, keepdims=True), 1e-9)
    inputs = np.hstack([sums / norms, np.ones((len(sums), 1))]).astype(np.float64)
    gram = inputs.T @ inputs + RIDGE * np.eye(inputs.shape[1])
    mapping: Vectors = np.linalg.solve(gram, inputs.T @ real).astype(np.float32)
    return mapping


def vocabulary_size(tokenizer: Tokenizer) -> int:
    """Return the rows of a table of all tokens: the highest id, special tokens included, and one."""
    return max(tokenizer.get_vocab().values()) + 1


def token_ids(tokenizer: Tokenizer) -> NDArray[np.int64]:
    """Return the ids of the tokens of texts, without special ones such as [CLS], in ascending order."""
    special = {token.content for token in tokenizer.get_added_tokens_decoder().values() if token.special}
    vocabulary = tokenizer.get_vocab()
    return np.array(sorted(at for token, at in vocabulary.items() if token[:1] != "[" and token not in special))


def token_vectors(
    encode_ids: Callable[[Sequence[Sequence[int]]], ArrayLike],
    tokenizer: Tokenizer,
    ids: NDArray[np.int64],
) -> Vectors:
    """Embed each token as a text by itself, between the special tokens. Return shape (tokens, dimension)."""
    special = tokenizer.encode("").ids
    before, after = (special[:1], special[1:]) if len(special) == 2 else ([], [])
    batches = (ids[start : start + BATCH] for start in range(0, len(ids), BATCH))
    return np.concatenate(
        [np.asarray(encode_ids([(*before, int(i), *after) for i in batch]), np.float32) for batch in batches]
    )


def token_weights(tokenizer: Tokenizer, ids: NDArray[np.int64]) -> Vectors:
    """Return the smooth inverse frequency a / (a + p) of each token, shape (tokens,).

    Zipf's law gives p from the rank in the vocabulary. The few texts at hand are too short for counts: they would not
    show how rare the words of a question are. Tokens before the first word are punctuation, letters and digits. They
    count as one of the most frequent words.
    """
    rank = np.maximum(ids - (tokenizer.token_to_id(FIRST_WORD) or 0), 0) + 1.0
    harmonic = np.log(rank.max()) + np.euler_gamma
    probability = 1.0 / (rank * harmonic)
    weight: Vectors = (SMOOTHING / (SMOOTHING + probability)).astype(np.float32)
    return weight
