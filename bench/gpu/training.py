"""The training of the cross-encoder: steps a second on the CPU and on the device, with the pairs of this project.

The whole training is a command of its own: `python -m training.cross_encoder --device cuda`, with its data sets.
"""

from __future__ import annotations

import importlib
import random
import tempfile
import time
from pathlib import Path
from typing import Any

from bench.gpu.record import Skipped, StageOptions, stage_arguments
from bench.gpu.weights import model_dir, published_model
from gateway.adapters.onnx.cross_encoder import load_word_table
from gateway.adapters.onnx.model_files import TOKENIZER_FILE
from training import wordings

WARM, STEPS = 5, 10**6  # steps before the clock starts; more than the time allows
SHARE = 0.3  # of the time that is left, for each device


def main() -> None:
    given, record = stage_arguments()
    devices = ["cpu"] if given.device == "cpu" else ["cpu", given.device]
    for device in devices:
        name = f"training on {device}"
        with record.part(name):
            figures = steps(given, device, 1.0 if given.quick else SHARE * record.left_s)
            record.row(name, **figures)


def steps(given: StageOptions, device: str, seconds: float) -> dict[str, Any]:
    """Train for so long, and return the rates. Raises `Skipped`."""
    torch = importlib.import_module("torch")
    if device == "cuda" and not torch.cuda.is_available():
        raise Skipped(f"torch {torch.__version__} finds no GPU")
    trainer, network_of = (importlib.import_module(f"training.{name}") for name in ("cross_encoder", "cross_network"))
    with tempfile.TemporaryDirectory() as scratch:
        network = network_of.Network(published_model(given.weights, Path(scratch)), trainer.LAYERS)
    data = trainer.Data(wordings.pairs(wordings.groups()), [])
    rows = trainer.batches(data, network_of.Reader(model_dir() / TOKENIZER_FILE), random.Random(0))
    table = load_word_table(model_dir())
    trainer.train(network, rows, table, WARM, 10 * seconds, device)
    began = time.monotonic()
    done = trainer.train(network, rows, table, STEPS, seconds, device)
    took = time.monotonic() - began
    return {
        "steps_s": done / took,
        "pairs_s": done * trainer.BATCH / took,
        "minutes_for_all_steps": trainer.STEPS * took / max(1, done) / 60.0,
    }


if __name__ == "__main__":
    main()
