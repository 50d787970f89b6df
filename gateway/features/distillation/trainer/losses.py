"""The loss function of a student."""

from __future__ import annotations

import torch
from torch.nn import functional


def distillation(
    logits: torch.Tensor,
    labels: torch.Tensor,
    teacher: torch.Tensor,
    has_teacher: torch.Tensor,
    alpha: float,
    temperature: float,
) -> torch.Tensor:
    """Return the mean over rows of alpha * CE + (1 - alpha) * T^2 * KL(teacher || student), both softened by T.

    The source is Hinton, Vinyals and Dean, "Distilling the Knowledge in a Neural Network" (2015), section 2. T^2 keeps
    the gradients of the two parts at the same scale. `logits` and `teacher` have shape (rows, labels). `has_teacher`,
    bool of shape (rows,), marks the rows with probabilities of the teacher. The other rows have CE alone.
    """
    hard = functional.cross_entropy(logits, labels, reduction="none")
    student = functional.log_softmax(logits / temperature, dim=1)
    wanted = functional.log_softmax(teacher / temperature, dim=1)
    soft = temperature**2 * (wanted.exp() * (wanted - student)).sum(1)
    return torch.where(has_teacher, alpha * hard + (1.0 - alpha) * soft, hard).mean()
