"""Runs epochs with a checkpoint after each. A run that was killed resumes, and ends with the same weights."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

import torch

OnEpoch = Callable[[int, float], None]
"""Called with the number of finished epochs and the mean loss of the last one."""


class Stateful(Protocol):
    """State that a checkpoint saves: a model or an optimiser."""

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any], /) -> Any: ...


def resumable(
    parts: Mapping[str, Stateful],
    total: int,
    checkpoint: Path,
    digest: str,
    epoch: Callable[[int], float],
    on_epoch: OnEpoch,
) -> int:
    """Run `epoch` with the numbers 0 to `total` - 1, and return how many epochs an earlier run had finished.

    `parts` has all state that an epoch changes. `digest` covers all inputs of the training; a checkpoint with another
    digest is ignored. The random numbers of an epoch must depend on the seed and its number alone.
    """
    begun = 0
    if (saved := _loaded(checkpoint, digest)) is not None:
        begun = saved["epoch"]
        for name, each in parts.items():
            each.load_state_dict(saved[name])
    for number in range(begun, total):
        loss = epoch(number)
        states = {name: each.state_dict() for name, each in parts.items()}
        _save(checkpoint, {"digest": digest, "epoch": number + 1} | states)
        on_epoch(number + 1, loss)
    return begun


def epoch_generator(seed: int, epoch: int) -> torch.Generator:
    """Return the random generator of one epoch."""
    return torch.Generator().manual_seed(seed * 100_003 + epoch)


def _loaded(checkpoint: Path, digest: str) -> dict[str, Any] | None:
    try:
        saved: dict[str, Any] = torch.load(checkpoint, weights_only=True)
    except (OSError, RuntimeError, ValueError, EOFError):  # missing or incomplete: start from the beginning
        return None
    return saved if saved.get("digest") == digest else None


def _save(checkpoint: Path, state: dict[str, Any]) -> None:
    partial = checkpoint.with_suffix(".part")
    torch.save(state, partial)
    os.replace(partial, checkpoint)  # noqa: PTH105 - atomic: a killed run leaves the last checkpoint
