"""Static token vectors distilled from the sentence encoder: the light model's whole knowledge of language.

Every token of the vocabulary goes through the encoder once, alone. The vectors are reduced by PCA and weighted by
smooth inverse frequency, so that the weighted sum of a text's tokens stands for the text. The weighting is that of
Arora, Liang and Ma, "A simple but tough-to-beat baseline for sentence embeddings" (ICLR 2017); distilling from a
sentence encoder's vocabulary, without any text, is the idea of model2vec (Tulkens and van Dongen, 2024).
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
# a of a / (a + p). Arora et al. advise 1e-3 to 1e-4: of the 30 questions in tests/tools/demo/questions.yaml the light
# model answered 25 with 1e-2, 27 with 1e-3, 26 with 3e-4 and 25 with 1e-4.
SMOOTHING = 1e-3
FIRST_WORD = "the"  # BERT's vocabulary lists whole words from here on, the most frequent first
BATCH = 256  # three tokens each: some 2 MB of activations a layer


def ensure_static_vectors(
    model: Path, tokenizer: Path, directory: Path, progress: Callable[[str], None], threads: int = 2
) -> Path:
    """The file with the vectors distilled from `model`, made in `directory` unless it is there.

    The file holds `vectors`, float16 of shape (vocabulary, 256), weights included. Its name carries the digest of
    all that it is made from.
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
        with TemporaryDirectory(dir=directory) as own:  # others may be making it, too
            partial = Path(own) / target.name
            np.savez(partial, vectors=vectors)
            partial.replace(target)  # at once: whoever finds the file finds all of it
        for outdated in set(directory.glob("static-*.npz")) - {target}:
            outdated.unlink(missing_ok=True)
        progress(f"distilled {len(vectors)} token vectors in {time.monotonic() - started:.0f} s")
    return target


def distil_vectors(encoder: MiniLm) -> NDArray[np.float16]:
    """The vectors of the encoder's vocabulary, shape (vocabulary, 256); tokens that no text holds are zero."""
    vocabulary = encoder.tokenizer.get_vocab()
    tokens = sorted(vocabulary, key=vocabulary.__getitem__)
    used = np.array([vocabulary[token] for token in tokens if not token.startswith("[")])
    reduced = reduce_dimensions(_token_vectors(encoder, used))
    table = np.zeros((max(vocabulary.values()) + 1, DIMENSION), np.float32)
    table[used] = reduced * weights(encoder.tokenizer, used)[:, None]
    return table.astype(np.float16)


def _token_vectors(encoder: MiniLm, ids: NDArray[np.int64]) -> NDArray[np.float32]:
    """Each token as a text of its own, between the special tokens; shape (tokens, 384)."""
    before, after = encoder.tokenizer.encode("").ids
    batches = (ids[start : start + BATCH] for start in range(0, len(ids), BATCH))
    return np.concatenate([encoder.encode_ids([(before, int(i), after) for i in batch]) for batch in batches])


def reduce_dimensions(vectors: NDArray[np.float32]) -> NDArray[np.float32]:
    """The first `DIMENSION` principal components. Centring also removes what all tokens have in common."""
    centred = vectors - vectors.mean(axis=0)
    _, axes = np.linalg.eigh(np.cov(centred, rowvar=False))  # ascending
    components: NDArray[np.float32] = centred @ axes[:, : -DIMENSION - 1 : -1]
    return components


def weights(tokenizer: Tokenizer, ids: NDArray[np.int64]) -> NDArray[np.float32]:
    """Smooth inverse frequency a / (a + p) of each token, shape (tokens,).

    p comes from the rank in the vocabulary by Zipf's law, not from counts in the documentation: that is too small
    to say how rare the words of a question are. What stands before the first word is punctuation, letters and
    digits; it counts as one of the most frequent words.
    """
    rank = np.maximum(ids - (tokenizer.token_to_id(FIRST_WORD) or 0), 0) + 1.0
    harmonic = np.log(rank.max()) + np.euler_gamma
    probability = 1.0 / (rank * harmonic)
    weight: NDArray[np.float32] = (SMOOTHING / (SMOOTHING + probability)).astype(np.float32)
    return weight
