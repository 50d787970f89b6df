"""Distils short token vectors from a sentence encoder, for light models that understand language by them alone.

gateway/model_build/static_vectors.py makes the vectors. PCA reduces them here.
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

from gateway.adapters.onnx.encoder import OnnxEncoder
from gateway.adapters.onnx.model_files import MODEL_FILE, TOKENIZER_FILE
from gateway.model_build import static_vectors
from gateway.model_build.static_vectors import (
    SMOOTHING,
    token_ids,
    token_vectors,
    token_weights,
    vocabulary_size,
)

DIMENSION = 256


def ensure_reduced_vectors(model_dir: Path, directory: Path, progress: Callable[[str], None], threads: int = 2) -> Path:
    """Return the file with the vectors of the model in `model_dir`. Make it in `directory` if it is missing.

    The file contains `vectors`, float16 of shape (vocabulary, 256), already weighted. Its name contains the digest of
    all its inputs. Raises `ModelMissing` or `ModelCorrupt`.
    """
    model, tokenizer = model_dir / MODEL_FILE, model_dir / TOKENIZER_FILE
    made_from = hashlib.sha256(f"{DIMENSION} {SMOOTHING}".encode())
    for part in (model, tokenizer, Path(__file__), Path(static_vectors.__file__)):
        made_from.update(part.read_bytes())
    target = directory / f"static-{made_from.hexdigest()[:16]}.npz"
    if not target.exists():
        started = time.monotonic()
        progress("distilling the light model's token vectors from the encoder (some 10 s, once)")
        vectors = distil_vectors(OnnxEncoder(model_dir, threads), Tokenizer.from_file(str(tokenizer)))
        directory.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(dir=directory) as own:  # another process may make the file at the same time
            partial = Path(own) / target.name
            np.savez(partial, vectors=vectors)
            partial.replace(target)  # atomic: a reader never sees a partial file
        for outdated in set(directory.glob("static-*.npz")) - {target}:
            outdated.unlink(missing_ok=True)
        progress(f"distilled {len(vectors)} token vectors in {time.monotonic() - started:.0f} s")
    return target


def distil_vectors(encoder: OnnxEncoder, tokenizer: Tokenizer) -> NDArray[np.float16]:
    """Return the vectors of the encoder's vocabulary, shape (vocabulary, 256). Tokens with "[" first get zeros."""
    tokenizer.no_padding()
    ids = token_ids(tokenizer)
    reduced = reduce_dimensions(token_vectors(encoder.encode_ids, tokenizer, ids))
    table = np.zeros((vocabulary_size(tokenizer), DIMENSION), np.float32)
    table[ids] = reduced * token_weights(tokenizer, ids)[:, None]
    return table.astype(np.float16)


def reduce_dimensions(vectors: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the first `DIMENSION` principal components. Centring also removes the part common to all tokens."""
    centred = vectors - vectors.mean(axis=0)
    _, axes = np.linalg.eigh(np.cov(centred, rowvar=False))  # in ascending order
    components: NDArray[np.float32] = centred @ axes[:, : -DIMENSION - 1 : -1]
    return components
