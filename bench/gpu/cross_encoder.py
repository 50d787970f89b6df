"""The cross-encoder: pairs a second by batch, its cost where it reads every candidate, and agreement with the CPU."""

from __future__ import annotations

import importlib
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bench.gpu.decisions import Decisions
from bench.gpu.embedder import TIMEOUT_S, batches_of
from bench.gpu.record import Record, StageOptions, stage_arguments
from bench.gpu.sessions import Session, rates, time_calls
from bench.gpu.triton_server import python_config, triton_server
from bench.gpu.weights import Graphs, model_dir, write_graphs
from gateway.adapters.onnx.cross_encoder import UNREAD_LOGIT, OnnxCrossEncoder
from gateway.adapters.onnx.encoder import OnnxEncoder
from gateway.adapters.onnx.model_files import TOKENIZER_FILE
from gateway.adapters.onnx.tokenizer import PairTokenizer, join_pair
from gateway.adapters.system.clock import SystemClock
from gateway.cache.judgement import MAX_CANDIDATES
from gateway.cache.verifiers import WEIGHTS
from gateway.features.embedding_model.triton_models import CROSS_ENCODER

Pair = tuple[str, str]
Score = Callable[[Sequence[Pair]], list[float]]


@dataclass
class Bench:
    given: StageOptions
    record: Record
    decisions: Decisions
    similarities: list[float]
    reference: list[float]  # logits of the CPU's model

    def measure(self, name: str, score: Score) -> None:
        """Keep one row. `candidates_ms`: p50 of one question beside as many candidates as a lookup reads."""
        pairs = self.decisions.pairs
        figures: dict[str, Any] = rates(score, pairs, batches_of(self.given), self.given.patience_s)
        stored = [pair[1] for pair in pairs]
        groups = [
            [(asked, stored[(at + i) % len(stored)]) for i in range(MAX_CANDIDATES)]
            for at, (asked, _) in enumerate(pairs)
        ]
        figures["candidates_ms"], _ = time_calls(lambda at: score(groups[at % len(groups)]), self.given.patience_s)
        logits = score(pairs)
        self.reference = self.reference or logits
        apart = np.abs(np.subtract(logits, self.reference))
        changed = self.decisions.second(self.similarities, logits) != self.decisions.second(
            self.similarities, self.reference
        )
        figures |= {"logit_apart_mean": float(apart.mean()), "logit_apart_most": float(apart.max())}
        self.record.row(name, **figures, decisions_changed=f"{int(changed.sum())} of {len(changed)}")


def main() -> None:
    given, record = stage_arguments()
    decisions = Decisions(24 if given.quick else None)
    where = "CUDA" if given.device == "cuda" else "CPU"
    with record.part("int8 on the CPU, as shipped"):
        encoder = OnnxEncoder(model_dir())
        vectors = {text: encoder.encode([text])[0].vector for text in decisions.texts}
        similarities = [min(1.0, max(0.0, float(vectors[a] @ vectors[b]))) for a, b in decisions.pairs]
        bench = Bench(given, record, decisions, similarities, [])
        bench.measure("int8 on the CPU, as shipped", of_gateway(OnnxCrossEncoder(model_dir(), WEIGHTS)))
        with tempfile.TemporaryDirectory() as scratch, record.part(f"onnxruntime {where}"):
            made = write_graphs(CROSS_ENCODER, Path(scratch))
            on_onnxruntime(bench, made, where)
            with record.part("Triton"):
                on_triton(bench, made)


def on_onnxruntime(bench: Bench, made: Graphs, where: str) -> None:
    reader = PairTokenizer(model_dir() / TOKENIZER_FILE)
    for precision in ("float32", "float16"):
        name = f"onnxruntime {where} {precision}"
        with bench.record.part(name):
            session = Session(made.of(precision), bench.given.device)

            def score(pairs: Sequence[Pair], session: Session = session) -> list[float]:
                read = [join_pair(reader.ids(a), reader.ids(b)) for a, b in pairs]
                known = [each for each in read if each is not None]
                rows = session([ids.tolist() for ids, _ in known], [types.tolist() for _, types in known])
                logits = iter(rows[:, 0].tolist())
                return [UNREAD_LOGIT if each is None else next(logits) for each in read]

            bench.measure(name, score)


def on_triton(bench: Bench, made: Graphs) -> None:
    """Measure the gateway's adapter, whose constructor compares the logits of eleven known pairs."""
    module = importlib.import_module("gateway.features.triton.cross_encoder")
    with triton_server(bench.given, {CROSS_ENCODER: (made.float32, python_config(CROSS_ENCODER))}) as server:
        tokenizer = model_dir() / TOKENIZER_FILE
        encoder = module.TritonCrossEncoder(
            server.url, CROSS_ENCODER, tokenizer, timeout_s=TIMEOUT_S, clock=SystemClock(), weights=WEIGHTS
        )
        bench.measure(f"Triton float32 ({server.about})", of_gateway(encoder))


def of_gateway(encoder: Any) -> Score:
    """Return the logits of a `CrossEncoder`, which takes one question and its candidates at a time."""

    def score(pairs: Sequence[Pair]) -> list[float]:
        groups: dict[str, list[int]] = {}
        for at, (asked, _) in enumerate(pairs):
            groups.setdefault(asked, []).append(at)
        found = [0.0] * len(pairs)
        for asked, places in groups.items():
            for at, logit in zip(places, encoder.score(asked, [pairs[at][1] for at in places]), strict=True):
                found[at] = logit
        return found

    return score


if __name__ == "__main__":
    main()
