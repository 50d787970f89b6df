"""Distils static token vectors from the sentence encoder. The light model understands language by them alone.

The encoder embeds every token of the vocabulary once, alone. PCA reduces the vectors, and smooth inverse
frequency weights them: the weighted sum of the tokens of a text represents the text. The weighting comes from
Arora, Liang and Ma, "A simple but tough-to-beat baseline for sentence embeddings" (ICLR 2017). The distillation from
the vocabulary of an encoder, without any text, comes from model2vec (Tulkens and van Dongen, 2024).
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from gateway.tools.demo.repository.encoders import MiniLm

DIMENSION = 256
# The a in a / (a + p). Arora et al. advise 1e-3 to 1e-4. The light model answered 25 of the 30 questions in
# tests/tools/demo/questions.yaml with 1e-2, 27 with 1e-3, 26 with 3e-4 and 25 with 1e-4.
SMOOTHING = 1e-3
FIRST_WORD = "the"  # from here on, BERT's vocabulary lists whole words, the most frequent first
BATCH = 256  # texts of three tokens each: about 2 MB of activations per layer


def ensure_static_vectors(
    model: Path, tokenizer: Path, directory: Path, progress: Callable[[str], None], threads: int = 2
) -> Path:
    """Return the file with the vectors distilled from `model`. Make it in `directory` if it is missing.

    The file contains `vectors`, float16 of shape (vocabulary, 256), already weighted. Its name contains the digest of
    all its inputs.
    """
    made_from = hashlib.sha256(f"{DIMENSION} {SMOOTHING}".encode())
    for part in (model, tokenizer, Path(__file__)):
        made_from.update(part.read_bytes())
    target = directory / f"static-{made_from.hexdigest()[:16]}.npz"
    if not target.exists():
        started = time.monotonic()
        progress("distilling the light model's token vectors from the encoder (some 10 s, once)")
        vectors = distil_vectors(MiniLm(model, tokenizer, threads))
        directory.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(dir=directory) as own:  # another process may make the file at the same time
            partial = Path(own) / target.name
            np.savez(partial, vectors=vectors)
            partial.replace(target)  # atomic: a reader never sees a partial file
        for outdated in set(directory.glob("static-*.npz")) - {target}:
            outdated.unlink(missing_ok=True)
        progress(f"distilled {len(vectors)} token vectors in {time.monotonic() - started:.0f} s")
    return target


def distil_vectors(encoder: MiniLm) -> NDArray[np.float16]:
    """Return the vectors of the encoder's vocabulary, shape (vocabulary, 256). Tokens with "[" first get zeros."""
    vocabulary = encoder.tokenizer.get_vocab()
    tokens = sorted(vocabulary, key=vocabulary.__getitem__)
    used = np.array([vocabulary[token] for token in tokens if not token.startswith("[")])
    reduced = reduce_dimensions(_token_vectors(encoder, used))
    table = np.zeros((max(vocabulary.values()) + 1, DIMENSION), np.float32)
    table[used] = reduced * weights(encoder.tokenizer, used)[:, None]
    return table.astype(np.float16)


def _token_vectors(encoder: MiniLm, ids: NDArray[np.int64]) -> NDArray[np.float32]:
    """Embed each token as a text by itself, between the special tokens. Return shape (tokens, 384)."""
    before, after = encoder.tokenizer.encode("").ids
    batches = (ids[start : start + BATCH] for start in range(0, len(ids), BATCH))
    return np.concatenate([encoder.encode_ids([(before, int(i), after) for i in batch]) for batch in batches])


def reduce_dimensions(vectors: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the first `DIMENSION` principal components. Centring also removes the part common to all tokens."""
    centred = vectors - vectors.mean(axis=0)
    _, axes = np.linalg.eigh(np.cov(centred, rowvar=False))  # in ascending order
    components: NDArray[np.float32] = centred @ axes[:, : -DIMENSION - 1 : -1]
    return components


def weights(tokenizer: Tokenizer, ids: NDArray[np.int64]) -> NDArray[np.float32]:
    """Return the smooth inverse frequency a / (a + p) of each token, shape (tokens,).

    Zipf's law gives p from the rank in the vocabulary. The documentation is too small for counts: they would not show
    how rare the words of a question are. Tokens before the first word are punctuation, letters and digits. They
    count as one of the most frequent words.
    """
    rank = np.maximum(ids - (tokenizer.token_to_id(FIRST_WORD) or 0), 0) + 1.0
    harmonic = np.log(rank.max()) + np.euler_gamma
    probability = 1.0 / (rank * harmonic)
    weight: NDArray[np.float32] = (SMOOTHING / (SMOOTHING + probability)).astype(np.float32)
    return weight
