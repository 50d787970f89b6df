"""A light model for the benchmark: a student of `nearhit distill`, trained here on questions of the test data."""

from __future__ import annotations

import csv
import json
from dataclasses import dataclass
from pathlib import Path

from bench.gpu.decisions import TRAPS
from bench.gpu.record import Skipped
from bench.gpu.weights import BUILD_ENV
from gateway.adapters.onnx.model_files import default_model_dir
from gateway.features.distillation.data import DataInvalid
from gateway.features.distillation.options import DistillOptions, OutputDir, TrainingOptions
from gateway.features.distillation.run import distil
from gateway.model_build.environment import FetchFailed

NAME, GRAPH, CONFIG = "light", "light-graph", "config.pbtxt"


@dataclass(frozen=True, slots=True)
class Student:
    """A small model. `graph`: float32, for the device. `config`: its entry for Triton's onnxruntime backend."""

    graph: Path
    config: str


def student(scratch: Path) -> Student:
    """Train it: half a minute. Raises `Skipped`."""
    data = scratch / "light.csv"
    with data.open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(("text", "label"))
        rows = {row["asked"]: row["kind"] for row in map(json.loads, TRAPS.read_text().splitlines())}
        table.writerows(rows.items())
    repository = scratch / "models"
    options = DistillOptions(
        output=OutputDir(
            data=data,
            held_out=None,
            hold_out=0.2,
            name=NAME,
            repository=repository,
            work=scratch / "work",
            build_env=BUILD_ENV,
            models=default_model_dir(),
            quiet=True,
        ),
        large=False,
        agreement=0.0,
        width=256,
        hidden=256,
        tokens="all",
        precision="fp16",
        tensorrt=True,
        training=TrainingOptions(epochs=1),
    )
    try:
        distil(options, print)
    except (FetchFailed, DataInvalid) as error:
        raise Skipped(f"no light model: {error}") from None
    return student_in(repository / GRAPH)


def student_in(entry: Path) -> Student:
    """Return the student of an entry that `nearhit distill --tensorrt` wrote, such as models/NAME-graph. Raises
    `Skipped`."""
    graphs = sorted(entry.glob("*/model.onnx"))
    if not graphs or not (entry / CONFIG).is_file():
        raise Skipped(f"{entry} is no entry of a graph: nearhit distill --tensorrt writes NAME-graph")
    return Student(graphs[-1], (entry / CONFIG).read_text())
