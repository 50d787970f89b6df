"""Epochs, with a checkpoint after each: a run that was killed goes on, and ends with the weights it would have had."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

import torch

Told = Callable[[int, float], None]
"""Told the number of epochs done and the mean loss of the last."""


class Kept(Protocol):
    """A model, an optimiser, the masks of a pruning."""

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any], /) -> Any: ...


def resumable(
    kept: Mapping[str, Kept], total: int, checkpoint: Path, digest: str, epoch: Callable[[int], float], told: Told
) -> int:
    """Runs `epoch` with the numbers 0 to `total` - 1; returns how many an earlier run had done. `kept`: all that an
    epoch changes. `digest`: of all that decides the outcome; a checkpoint of another one is not used. Whatever an epoch
    draws it draws from the seed and its number."""
    begun = 0
    if (saved := _loaded(checkpoint, digest)) is not None:
        begun = saved["epoch"]
        for name, each in kept.items():
            each.load_state_dict(saved[name])
    for number in range(begun, total):
        loss = epoch(number)
        states = {name: each.state_dict() for name, each in kept.items()}
        _save(checkpoint, {"digest": digest, "epoch": number + 1} | states)
        told(number + 1, loss)
    return begun


def drawn(seed: int, epoch: int) -> torch.Generator:
    """Of one epoch."""
    return torch.Generator().manual_seed(seed * 100_003 + epoch)


def _loaded(checkpoint: Path, digest: str) -> dict[str, Any] | None:
    try:
        saved: dict[str, Any] = torch.load(checkpoint, weights_only=True)
    except (OSError, RuntimeError, ValueError, EOFError):  # none, or not whole: the run begins anew
        return None
    return saved if saved.get("digest") == digest else None


def _save(checkpoint: Path, state: dict[str, Any]) -> None:
    beside = checkpoint.with_suffix(".part")
    torch.save(state, beside)
    os.replace(beside, checkpoint)  # noqa: PTH105 - at once: whoever is killed leaves the last one
