"""Builds the Triton model repository of the demo: `light`, `large` and `embedder`, with the documentation inside."""

from __future__ import annotations

import asyncio
import hashlib
import shutil
from collections.abc import Callable, Sequence
from importlib import resources
from pathlib import Path

import numpy as np

from gateway.adapters.onnx.model_files import MODEL, MODEL_FILE, TOKENIZER_FILE, load_manifest
from gateway.features.demo.errors import ModelsUnavailable
from gateway.features.demo.passages import Passage, read_passages
from gateway.features.demo.repository.answering import Corpus
from gateway.features.demo.repository.encoders import Encoder, MiniLm, StaticVectors
from gateway.features.demo.triton_environment import ensure_triton
from gateway.features.demo.triton_server import TritonPorts, TritonServer, require_free
from gateway.model_build.reduced_vectors import ensure_reduced_vectors

MODELS = ("light", "large", "embedder")

SHARED = ("encoders.py", "answering.py", "streaming.py")  # copied next to each model.py


def build_repository(models: Path, doc_root: Path, target: Path, progress: Callable[[str], None]) -> Path:
    """Make the model repository at `target` unless it exists and is up to date. Return `target`.

    `models` is the directory with the encoder, `doc_root` the one with README.md and docs/. Raises `ModelsUnavailable`
    if there is no documentation, and `ModelMissing` or `ModelCorrupt` for the encoder.
    """
    encoder = models / MODEL
    load_manifest(encoder)
    model, tokenizer = encoder / MODEL_FILE, encoder / TOKENIZER_FILE
    passages = read_passages(doc_root)
    if not passages:
        raise ModelsUnavailable(f"there is no documentation (README.md, docs/*.md) under {doc_root}")
    static = ensure_reduced_vectors(encoder, models / f"{MODEL}-static", progress)
    digest, stamp = _digest(passages, static, model), target / "built-from.sha256"
    if stamp.is_file() and stamp.read_text() == digest:
        return target
    progress(f"embedding {len(passages)} passages of the documentation")
    shutil.rmtree(target, ignore_errors=True)
    files = {"tokenizer.json": tokenizer}
    _add(target, "large", files | {"model.onnx": model}, make_corpus(passages, MiniLm(model, tokenizer, threads=2)))
    _add(target, "light", files | {"static.npz": static}, make_corpus(passages, StaticVectors(static, tokenizer)))
    _add(target, "embedder", files | {"model.onnx": model}, None)
    stamp.write_text(digest)
    return target


def make_corpus(passages: Sequence[Passage], encoder: Encoder) -> Corpus:
    units = [unit for passage in passages for unit in passage.units]
    return Corpus(
        titles=[passage.title or passage.source for passage in passages],
        units=units,
        passage_of=np.repeat(np.arange(len(passages), dtype=np.int32), [len(p.units) for p in passages]),
        passage_vectors=encoder.encode([passage.text for passage in passages]),
        unit_vectors=encoder.encode(units),
    )


def _add(repository: Path, name: str, weights: dict[str, Path], corpus: Corpus | None) -> None:
    """Write one model: its configuration, its code, links to its weights, and its corpus."""
    version = repository / name / "1"
    version.mkdir(parents=True)
    source = resources.files("gateway.features.demo.repository")
    (repository / name / "config.pbtxt").write_bytes(source.joinpath(f"{name}.pbtxt").read_bytes())
    (version / "model.py").write_bytes(source.joinpath(f"{name}.py").read_bytes())
    for module in SHARED:
        (version / module).write_bytes(source.joinpath(module).read_bytes())
    for link, weight in weights.items():
        (version / link).symlink_to(weight.absolute())
    if corpus is not None:
        corpus.save(version)


def _digest(passages: Sequence[Passage], static: Path, model: Path) -> str:
    """Return the digest of all inputs of the repository.

    The inputs are the texts, the code and the weights; the name of the static vectors stands for the weights.
    """
    digest = hashlib.sha256(f"{static} {model} {passages}".encode())
    for entry in sorted(resources.files("gateway.features.demo.repository").iterdir(), key=lambda entry: entry.name):
        if entry.is_file():
            digest.update(entry.read_bytes())
    return digest.hexdigest()


async def start_demo_models(
    *,
    env: Path,
    models: Path,
    doc_root: Path,
    run_dir: Path,
    grpc_port: int,
    http_port: int,
    metrics_port: int,
    progress: Callable[[str], None],
) -> TritonServer:
    """Build the missing parts and start Triton with the models `light`, `large` and `embedder`.

    The caller stops the server. `env` is the path of the Triton environment, which is made if it is missing. `models`
    is the directory with the embedding model. Raises `DemoUnavailable`, `ModelMissing` or `ModelCorrupt`, each with
    one sentence, and leaves nothing running.
    """
    ports = TritonPorts(grpc=grpc_port, http=http_port, metrics=metrics_port)
    require_free(ports)  # checked first: building takes minutes
    environment = await asyncio.to_thread(ensure_triton, env, progress)
    repository = await asyncio.to_thread(build_repository, models, doc_root, run_dir / "models", progress)
    progress("starting Triton with the models light, large and embedder")
    return await TritonServer.start(environment, repository, run_dir, ports)
