"""The options and the result of `nearhit distill`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from gateway.features.distillation.repository import CANARY

Precision = Literal["int8", "fp16", "fp32"]
Tokens = Literal["all", "used"]
Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class TrainingOptions:
    """The training options of a classifier. docs/distill.md explains each."""

    alpha: float = 0.3
    temperature: float = 2.0
    epochs: int = 8
    batch: int = 64
    rate: float = 3e-3
    decay: float = 1e-3
    prune: float = 0.0
    prune_epochs: int = 5
    seed: int = 0


@dataclass(frozen=True, slots=True)
class TuningOptions:
    """The tuning options of the teacher of `--large`.

    With `epochs` 0, only its head is trained. `layers` is the number of lowest layers that it has, `frozen` that of
    those that stay unchanged.
    """

    epochs: int = 4
    rate: float = 1e-4
    layers: int = 6
    frozen: int = 2
    batch: int = 32
    seed: int = 0


@dataclass(frozen=True, slots=True)
class OutputDir:
    """The paths of a run: inputs, outputs and environments."""

    data: Path
    held_out: Path | None  # None: the share `hold_out` of the data
    hold_out: float
    name: str
    repository: Path
    work: Path
    build_env: Path
    models: Path
    quiet: bool


@dataclass(frozen=True, slots=True)
class DistillOptions:
    """All options for one classifier."""

    output: OutputDir
    large: bool  # train a teacher first, and publish it as NAME-large
    agreement: float  # target share of agreement with the teacher among sure answers; 0: it always answers
    width: int
    hidden: int
    tokens: Tokens
    precision: Precision
    tensorrt: bool
    training: TrainingOptions
    tuning: TuningOptions = field(default_factory=TuningOptions)
    policy_share: int = CANARY
    against: int | None = None  # the version that the gate compares with; None: the newest
    force: bool = False  # publish a version that the gate refuses


@dataclass(frozen=True, slots=True)
class DistilledModel:
    """A trained model. `entry` and `large` are the published versions; a model that the gate refuses has none."""

    entry: Path | None
    large: Path | None
    report: dict[str, Any]
    text: str  # the report as Markdown
    policy: str
