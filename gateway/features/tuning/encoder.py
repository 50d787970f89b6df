"""Fine-tunes the cross-encoder in the build environment."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gateway.adapters.onnx.cross_encoder import ABOUT_FILE, GRAPH_FILE, load_word_table
from gateway.adapters.onnx.model_files import TOKENIZER_FILE
from gateway.adapters.onnx.tokenizer import PairTokenizer, join_pair
from gateway.features.tuning.pairs import LabelledPair
from gateway.model_build.trainer import run_package

PAD = 0  # token id of [PAD]; its row comes first in the table of the job
LONGEST = 96  # tokens of a pair in training: longer ones are rare and cost the most


@dataclass(frozen=True, slots=True)
class Training:
    """The settings of the fine-tuning, as in `trainer.main.Plan`."""

    epochs: int = 3
    rate: float = 1e-4  # highest learning rate
    batch: int = 32
    smoothing: float = 0.1  # labels of traffic are noisy
    warm_up: float = 0.06
    limit_s: float = 3600.0
    keep: float = (
        0.4  # share of the shipped weights in the result: as good on the stream, and half of the loss on traps
    )
    seed: int = 0


def fine_tune(
    pairs: Sequence[LabelledPair],
    targets: NDArray[np.float64] | None = None,
    *,
    weights: Path,
    model_dir: Path,
    python: Path,
    work: Path,
    plan: Training,
    quiet: bool = True,
) -> dict[str, Any]:
    """Write cross_encoder.onnx and cross_encoder.json to `work`, and return the report of the training.

    The training begins with the weights in the folder `weights`. Its targets, (n,) in [0, 1], are the labels unless
    `targets` is given. Raises `FetchFailed`.
    """
    reader = PairTokenizer(model_dir / TOKENIZER_FILE)
    wanted = np.array([pair.same for pair in pairs], np.float64) if targets is None else targets
    rows, used = list[dict[str, Any]](), {PAD: 0}
    for pair, target in zip(pairs, wanted.tolist(), strict=True):
        joined = join_pair(reader.ids(pair.asked), reader.ids(pair.stored))
        if joined is None or len(joined[0]) > LONGEST:
            continue
        ids = [used.setdefault(each, len(used)) for each in joined[0].tolist()]
        rows.append({"ids": ids, "second_at": int(joined[1].argmax()), "target": target})
    work.mkdir(parents=True, exist_ok=True, mode=0o700)
    table = load_word_table(model_dir)
    np.save(work / "words.npy", table(np.array(list(used), np.int64)).astype(np.float32))
    job = {"plan": asdict(plan), "graph": str(weights / GRAPH_FILE)}
    how = ("quiet" if quiet else "shown",)
    report = run_package(
        Path(__file__).parent, work, python, job, rows, how, failure="the cross-encoder could not be tuned"
    )
    content = (work / GRAPH_FILE).read_bytes()
    about = json.loads((weights / ABOUT_FILE).read_bytes())
    about |= {
        "sha256": hashlib.sha256(content).hexdigest(),
        "bytes": len(content),
        "table_sha256": table.digest(),
        "tuned": {"pairs": len(rows), **asdict(plan), **report},
    }
    about.pop("held_out", None)  # figures of the shipped weights
    (work / ABOUT_FILE).write_text(json.dumps(about, indent=2) + "\n")
    return {"pairs": len(rows), **report}
