"""Epochs, with a checkpoint after each: a run that was killed goes on, and ends with the weights it would have had."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from .losses import distillation
from .student import Student, apply_masks, pruning_masks

Told = Callable[[int, float], None]
"""Told the number of epochs done and the mean loss of the last."""


@dataclass(frozen=True, slots=True)
class Plan:
    alpha: float
    temperature: float
    epochs: int
    batch: int
    rate: float
    decay: float
    prune: float  # share of the weights, 0 for none
    prune_epochs: int  # after it
    seed: int

    @property
    def total(self) -> int:
        return self.epochs + (self.prune_epochs if self.prune else 0)


@dataclass(frozen=True, slots=True)
class Examples:
    rows: Sequence[Sequence[int]]  # numbers of the table's rows
    labels: torch.Tensor  # (rows,)
    teacher: torch.Tensor  # (rows, labels), logits; whatever where `told` is false
    told: torch.Tensor  # (rows,)


def padded(rows: Sequence[Sequence[int]]) -> tuple[torch.Tensor, torch.Tensor]:
    """(numbers, mask)"""
    length = max(map(len, rows))
    numbers = torch.tensor([[*row, *[0] * (length - len(row))] for row in rows])
    mask = torch.tensor([[1] * len(row) + [0] * (length - len(row)) for row in rows])
    return numbers, mask


def train(student: Student, examples: Examples, plan: Plan, checkpoint: Path, digest: str, told: Told) -> int:
    """Returns the epochs that an earlier run had done. `digest`: of all that decides the outcome; a checkpoint of
    another one is not used. Whatever is drawn is drawn from the seed and the epoch's number."""
    optimiser = torch.optim.AdamW(student.parameters(), lr=plan.rate, weight_decay=plan.decay)
    masks: dict[str, torch.Tensor] = {}
    begun = 0
    if (saved := _loaded(checkpoint, digest)) is not None:
        student.load_state_dict(saved["student"])
        optimiser.load_state_dict(saved["optimiser"])
        masks, begun = saved["masks"], saved["epoch"]
    for epoch in range(begun, plan.total):
        if epoch == plan.epochs:
            masks = pruning_masks(student, plan.prune)
            apply_masks(student, masks)
        loss = _epoch(student, optimiser, examples, plan, epoch, masks)
        state = {"digest": digest, "epoch": epoch + 1, "masks": masks}
        _save(checkpoint, state | {"student": student.state_dict(), "optimiser": optimiser.state_dict()})
        told(epoch + 1, loss)
    return begun


def _epoch(
    student: Student,
    optimiser: torch.optim.Optimizer,
    examples: Examples,
    plan: Plan,
    epoch: int,
    masks: dict[str, torch.Tensor],
) -> float:
    for group in optimiser.param_groups:
        group["lr"] = plan.rate * (1.0 - epoch / plan.total)
    order = torch.randperm(len(examples.rows), generator=torch.Generator().manual_seed(plan.seed * 100_003 + epoch))
    losses = 0.0
    student.train()
    for chosen in order.split(plan.batch):
        numbers, mask = padded([examples.rows[at] for at in chosen.tolist()])
        loss = distillation(
            student(numbers, mask),
            examples.labels[chosen],
            examples.teacher[chosen],
            examples.told[chosen],
            plan.alpha,
            plan.temperature,
        )
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        apply_masks(student, masks)
        losses += loss.item() * len(chosen)
    return losses / len(examples.rows)


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
