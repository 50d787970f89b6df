"""Trains the student: knowledge distillation, then fewer hidden units and further epochs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from .checkpointing import OnEpoch, epoch_generator, resumable
from .losses import distillation
from .pruning import prune_units
from .student import Student

SORTED = 16  # batches sorted by length together: texts of a batch have similar lengths, and are still random
WARM_UP = 0.1  # share of the steps in which the learning rate rises


@dataclass(frozen=True, slots=True)
class Plan:
    alpha: float
    temperature: float
    epochs: int
    batch: int
    rate: float
    decay: float
    prune: float  # share of the hidden units, 0 for none
    prune_epochs: int  # epochs after the pruning
    seed: int

    @property
    def total(self) -> int:
        return self.epochs + (self.prune_epochs if self.prune else 0)


@dataclass(frozen=True, slots=True)
class Examples:
    rows: Sequence[Sequence[int]]  # row numbers in the table of token vectors
    labels: torch.Tensor  # (rows,)
    teacher: torch.Tensor  # (rows, labels), logits; ignored if `has_teacher` is false
    has_teacher: torch.Tensor  # (rows,), bool: the row has probabilities of the teacher


def padded(rows: Sequence[Sequence[int]]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the rows padded to one length, and their mask."""
    length = max(map(len, rows))
    numbers = torch.tensor([[*row, *[0] * (length - len(row))] for row in rows])
    mask = torch.tensor([[1] * len(row) + [0] * (length - len(row)) for row in rows])
    return numbers, mask


def batches(lengths: Sequence[int], batch: int, draws: torch.Generator) -> Iterator[list[int]]:
    """Yield batches of row numbers that cover all rows, in random order. Rows of a batch have similar lengths."""
    order = torch.randperm(len(lengths), generator=draws).tolist()
    batches = []
    for at in range(0, len(order), batch * SORTED):
        part = sorted(order[at : at + batch * SORTED], key=lengths.__getitem__)
        batches += [part[of : of + batch] for of in range(0, len(part), batch)]
    for at in torch.randperm(len(batches), generator=draws).tolist():
        yield batches[at]


def pace(share: float) -> float:
    """Return the factor of the learning rate when `share` of the steps is done. It rises, then falls to 0."""
    return min(1.0, share / WARM_UP) * (1.0 - share)


def train(student: Student, examples: Examples, plan: Plan, checkpoint: Path, digest: str, on_epoch: OnEpoch) -> int:
    """Train the student, prune it and train it again. Return the number of epochs that an earlier run had finished.

    `checkpoint` is the file of the first epochs. Those after the pruning have one beside it, with the suffix `.pruned`.
    """
    begun = _train(student, examples, plan, range(plan.epochs), checkpoint, digest, on_epoch)
    if not plan.prune:
        return begun
    prune_units(student, plan.prune)
    epochs, later = range(plan.epochs, plan.total), checkpoint.with_suffix(".pruned")
    return begun + _train(student, examples, plan, epochs, later, digest, on_epoch)


def _train(
    student: Student,
    examples: Examples,
    plan: Plan,
    epochs: range,
    checkpoint: Path,
    digest: str,
    on_epoch: OnEpoch,
) -> int:
    optimiser = torch.optim.AdamW(student.parameters(), lr=plan.rate, weight_decay=plan.decay)
    return resumable(
        {"student": student, "optimiser": optimiser},
        len(epochs),
        checkpoint,
        digest,
        lambda number: _epoch(student, optimiser, examples, plan, epochs[number]),
        lambda number, loss: on_epoch(epochs.start + number, loss),
    )


def _epoch(
    student: Student,
    optimiser: torch.optim.Optimizer,
    examples: Examples,
    plan: Plan,
    epoch: int,
) -> float:
    for group in optimiser.param_groups:
        group["lr"] = plan.rate * (1.0 - epoch / plan.total)
    order = torch.randperm(len(examples.rows), generator=epoch_generator(plan.seed, epoch))
    losses = 0.0
    student.train()
    for chosen in order.split(plan.batch):
        numbers, mask = padded([examples.rows[at] for at in chosen.tolist()])
        loss = distillation(
            student(numbers, mask),
            examples.labels[chosen],
            examples.teacher[chosen],
            examples.has_teacher[chosen],
            plan.alpha,
            plan.temperature,
        )
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses += loss.item() * len(chosen)
    return losses / len(examples.rows)
