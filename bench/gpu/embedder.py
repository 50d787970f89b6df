"""The embedder: texts a second by batch, agreement with the model on the CPU, and latency through a gateway."""

from __future__ import annotations

import importlib
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench.gpu.added_latency import measure_through_gateway
from bench.gpu.decisions import Decisions
from bench.gpu.record import Record, StageOptions, stage_arguments
from bench.gpu.sessions import Session, rates
from bench.gpu.triton_server import python_config, triton_server
from bench.gpu.weights import Graphs, model_dir, published_model, write_graphs
from gateway.adapters.onnx.encoder import OnnxEncoder
from gateway.adapters.onnx.model_files import TOKENIZER_FILE, load_manifest
from gateway.adapters.onnx.tokenizer import TextTokenizer
from gateway.adapters.system.clock import SystemClock
from gateway.features.embedding_model.triton_models import EMBEDDER
from tests.contracts.text_encoder_rules import RULES

BATCHES = (1, 8, 32, 256)
TIMEOUT_S = 30.0  # of a call of Triton; the first ones allocate
Vectors = NDArray[np.float32]
Encode = Callable[[Sequence[str]], Vectors]


@dataclass
class Bench:
    """Measures encoders. `reference`: the vectors of the CPU's model, for comparison."""

    given: StageOptions
    record: Record
    decisions: Decisions
    reference: dict[str, Vectors]

    def measure(self, name: str, encode: Encode) -> None:
        """Keep one row for this encoder."""
        texts = self.decisions.texts
        figures: dict[str, Any] = rates(encode, texts, batches_of(self.given), self.given.patience_s)
        vectors = dict(zip(texts, encode_all(encode, texts), strict=True))
        if self.reference:
            cosines = [float(vectors[text] @ self.reference[text]) for text in texts]
            changed = self.decisions.first(self._similarities(vectors)) != self.decisions.first(
                self._similarities(self.reference)
            )
            figures |= {"cosine_mean": float(np.mean(cosines)), "cosine_least": min(cosines)}
            figures["decisions_changed"] = f"{int(changed.sum())} of {len(changed)}"
        else:
            self.reference.update(vectors)
            figures |= {"cosine_mean": 1.0, "cosine_least": 1.0, "decisions_changed": "the reference"}
        self.record.row(name, **figures)

    def _similarities(self, vectors: dict[str, Vectors]) -> list[float]:
        return [min(1.0, max(0.0, float(vectors[a] @ vectors[b]))) for a, b in self.decisions.pairs]


def main() -> None:
    given, record = stage_arguments()
    bench = Bench(given, record, Decisions(24 if given.quick else None), {})
    requests = 64 if given.quick else 1000
    where = "CUDA" if given.device == "cuda" else "CPU"
    with record.part("int8 on the CPU, as shipped"):
        bench.measure("int8 on the CPU, as shipped", of_gateway(OnnxEncoder(model_dir())))
    with record.part("int8 on the CPU, through the gateway"):
        measure_through_gateway("onnx", "int8 on the CPU", bench.decisions.texts, requests, record)
    with tempfile.TemporaryDirectory() as scratch:
        with record.part(f"sentence-transformers {where}"):
            sentence_transformers(bench, Path(scratch), where, requests)
        with record.part(f"onnxruntime {where}"):
            made = write_graphs(EMBEDDER, Path(scratch))
            on_onnxruntime(bench, made, where)
            with record.part("Triton"):
                on_triton(bench, made, requests)


def sentence_transformers(bench: Bench, scratch: Path, where: str, requests: int) -> None:
    module = importlib.import_module("gateway.adapters.embedding.sentence_transformers")
    library = importlib.import_module("sentence_transformers")
    folder, device = published_model(bench.given.weights, scratch / "published"), bench.given.device
    bench.measure(
        f"sentence-transformers {where} float32", of_gateway(module.SentenceTransformersEncoder(str(folder), device))
    )
    with bench.record.part(f"sentence-transformers {where} float16"):
        half = library.SentenceTransformer(str(folder), device=device).half()

        def encode(texts: Sequence[str]) -> Vectors:
            found = half.encode(list(texts), batch_size=len(texts), normalize_embeddings=True, show_progress_bar=False)
            return np.asarray(found, np.float32)

        bench.measure(f"sentence-transformers {where} float16", encode)
    section = f'sentence-transformers, model: "{folder}", device: {device}'
    measure_through_gateway(section, "sentence-transformers", bench.decisions.texts, requests, bench.record)


def on_onnxruntime(bench: Bench, made: Graphs, where: str) -> None:
    """Measure each precision in whole batches. int8 has no fast kernels for a GPU; its row shows that cost."""
    folder = model_dir()
    reader = TextTokenizer(folder / TOKENIZER_FILE, load_manifest(folder).reading)
    for precision in ("float32", "float16", "int8"):
        name = f"onnxruntime {where} {precision}"
        with bench.record.part(name):
            session = Session(made.of(precision), bench.given.device)

            def encode(texts: Sequence[str], session: Session = session) -> Vectors:
                return normalise(session([reader.read(text).ids for text in texts]))

            bench.measure(name, encode)


def on_triton(bench: Bench, made: Graphs, requests: int) -> None:
    """Measure the gateway's adapter, after it has passed its contract."""
    module = importlib.import_module("gateway.features.triton.encoder")
    with triton_server(bench.given, {EMBEDDER: (made.float32, python_config(EMBEDDER))}) as server:
        tokenizer = model_dir() / TOKENIZER_FILE
        encoder = module.TritonEncoder(server.url, EMBEDDER, tokenizer, timeout_s=TIMEOUT_S, clock=SystemClock())
        for rule in RULES:
            rule(encoder)
        bench.record.row("contract of the text encoder on Triton", kept=len(RULES))
        bench.measure(f"Triton float32 ({server.about})", of_gateway(encoder))
        section = f'triton, url: "{server.url}", model: {EMBEDDER}'
        measure_through_gateway(section, "Triton", bench.decisions.texts, requests, bench.record)


def batches_of(given: StageOptions) -> tuple[int, ...]:
    return BATCHES[:2] if given.quick else BATCHES


def of_gateway(encoder: Any) -> Encode:
    """Return the vectors of a `TextEncoder`."""
    return lambda texts: np.stack([each.vector for each in encoder.encode(list(texts))])


def normalise(vectors: Vectors) -> Vectors:
    return np.asarray(vectors / np.linalg.norm(vectors, axis=1, keepdims=True), np.float32)


def encode_all(encode: Encode, texts: Sequence[str]) -> Vectors:
    return np.concatenate([encode(texts[at : at + BATCHES[-1]]) for at in range(0, len(texts), BATCHES[-1])])


if __name__ == "__main__":
    main()
