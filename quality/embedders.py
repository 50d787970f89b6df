"""Compares embedding models on the hard pairs, by language: which pairs a gateway serves that has learnt nothing.

    python -m quality.embedders all-MiniLM-L6-v2 multilingual-e5-small [--model-dir FOLDER]

Each model is one that `nearhit model fetch` or `nearhit model build` made. A wording is found if its own stored
question is the most similar one of its language. `AUC` is that of the similarity among the pairs. The thresholds are
those of the verifier for a route without labels. The cross-encoder is asked only about texts that it reads.
"""

# ruff: noqa: T201 (a command prints)
from __future__ import annotations

import argparse
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np

from gateway.adapters.onnx.encoder import OnnxEncoder
from gateway.adapters.onnx.model_files import default_model_dir
from gateway.cache.languages import reads
from gateway.cache.model_factory import build_verifier
from gateway.cache.threshold.ledger import ThresholdLedger
from gateway.config.schema import EmbedderConfig, VerifierConfig
from gateway.ports import Opinion, StoredCandidate, Verifier
from quality import tables, traps
from quality.decision import CachingEmbedder

LANGUAGES = {"de": "German", "es": "Spanish", "zh": "Chinese"}
ENGLISH = "English"


class LanguageFilter:
    """A verifier that asks its second stage only about pairs that the stage can read."""

    def __init__(self, verifier: Verifier) -> None:
        self._verifier = verifier
        self.basis, self.prior, self.floor = verifier.basis, verifier.prior, verifier.floor

    def opinions(self, question: str, candidates: Sequence[StoredCandidate]) -> list[Opinion]:
        return self._verifier.opinions(question, candidates)

    async def second_opinion(self, question: str, candidate: StoredCandidate, first: Opinion) -> Opinion | None:
        if not (reads(question) and reads(candidate.question)):
            return None
        return await self._verifier.second_opinion(question, candidate, first)

    def features(self, question: str, candidate: StoredCandidate) -> Mapping[str, float]:
        return self._verifier.features(question, candidate)

    def close(self) -> None:
        self._verifier.close()


def by_language() -> dict[str, list[traps.Trap]]:
    """Return the pairs of the traps by language, with all English ones together."""
    grouped: dict[str, list[traps.Trap]] = {ENGLISH: []}
    for trap in traps.load():
        grouped.setdefault(LANGUAGES.get(trap.kind, ENGLISH), []).append(trap)
    return grouped


def auc(pairs: Sequence[traps.Trap], embedder: CachingEmbedder) -> float:
    """Return the share of (same, different) pairs of pairs that the similarity orders correctly."""
    similar = np.array(
        [embedder.embed_nowait(pair.stored).vector @ embedder.embed_nowait(pair.asked).vector for pair in pairs]
    )
    same = np.array([pair.same for pair in pairs])
    above = similar[same][:, np.newaxis] - similar[~same][np.newaxis]
    return float((above > 0).mean() + (above == 0).mean() / 2)


def recall(pairs: Sequence[traps.Trap], embedder: CachingEmbedder) -> float:
    """Return the share of wordings whose stored question is the most similar stored one of the language."""
    stored = list(dict.fromkeys(pair.stored for pair in pairs))
    vectors = np.stack([embedder.embed_nowait(text).vector for text in stored])
    right = [pair for pair in pairs if pair.same]
    near = [stored[int((vectors @ embedder.embed_nowait(pair.asked).vector).argmax())] for pair in right]
    return float(np.mean([text == pair.stored for text, pair in zip(near, right, strict=True)]))


def readable_share(pairs: Sequence[traps.Trap], embedder: CachingEmbedder) -> float:
    """Return the share of pairs that the model can read."""
    texts = [(pair.stored, pair.asked) for pair in pairs]
    return float(np.mean([not any(embedder.embed_nowait(text).partial for text in pair) for pair in texts]))


def cost_ms(encoder: OnnxEncoder, texts: Sequence[str]) -> float:
    """Return the least time of one text of median length, in milliseconds."""
    text = sorted(texts, key=len)[len(texts) // 2]
    times = []
    for _ in range(20):
        begun = time.perf_counter()
        encoder.encode([text])
        times.append(time.perf_counter() - begun)
    return min(times) * 1e3


def row(
    language: str, pairs: Sequence[traps.Trap], verifier: Verifier, encoder: OnnxEncoder, thresholds: Iterable[float]
) -> list[str]:
    """Return the cells of one model and language."""
    embedder = CachingEmbedder(encoder)
    served = [traps.tally(pairs, verifier, embedder, each)[-1] for each in thresholds]
    return [
        f"{language} ({served[0].right} / {served[0].wrong})",
        tables.share(readable_share(pairs, embedder), 0),
        tables.share(recall(pairs, embedder), 0),
        f"{auc(pairs, embedder):.2f}",
        *(f"{each.right_served} / {each.wrong_served}" for each in served),
        f"{cost_ms(encoder, [pair.asked for pair in pairs]):.1f}",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", help="names of models")
    parser.add_argument("--model-dir", type=Path, default=None, help="folder of the models")
    parser.add_argument("--budgets", type=float, nargs="+", default=[0.01, 0.02, 0.05], help="promises")
    given = parser.parse_args()
    verifier = LanguageFilter(build_verifier(VerifierConfig(), EmbedderConfig()))
    thresholds = {each: ThresholdLedger(verifier.prior).threshold(each) for each in given.budgets}
    rows = []
    for name in given.models:
        folder = (given.model_dir or default_model_dir()) / name
        encoder = OnnxEncoder(folder if folder.exists() else default_model_dir() / name)
        for language, pairs in by_language().items():
            rows.append([name, *row(language, pairs, verifier, encoder, thresholds.values())])
    columns = ["model", "pairs", "read", "found", "AUC", *(f"{each:.0%}" for each in thresholds), "ms / text"]
    print(tables.table(columns, rows))
    verifier.close()


if __name__ == "__main__":
    main()
