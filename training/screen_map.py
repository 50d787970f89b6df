"""Writes the map of the default model's static vectors: `python -m training.screen_map`.

`nearhit model fetch` puts it beside the token vectors that it distils (gateway/model_build/static_vectors.py). It must
be written again after a change of the embedding model or of its questions.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from gateway.adapters.onnx.encoder import OnnxEncoder
from gateway.adapters.onnx.model_files import MODEL, TOKENIZER_FILE, default_model_dir, load_manifest
from gateway.adapters.onnx.static_encoder import load_table
from gateway.adapters.onnx.tokenizer import TextTokenizer
from gateway.model_build.static_vectors import MAP_FILE, map_of_questions


def main(model_dir: Path, target: Path = MAP_FILE) -> None:
    """Fit the map of the model in `model_dir`, which has its static vectors already."""
    manifest = load_manifest(model_dir)
    table = load_table(model_dir, manifest.identity)
    reader = TextTokenizer(model_dir / TOKENIZER_FILE, manifest.reading)
    mapping = map_of_questions(OnnxEncoder(model_dir, threads=2), reader, table.tokens, table.scales)
    np.savez_compressed(target, mapping=mapping, model=manifest.identity)


if __name__ == "__main__":
    main(default_model_dir() / MODEL)
