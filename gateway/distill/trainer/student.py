"""The student: a table of token vectors, their mean, and two layers."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch.nn import functional


class Student(torch.nn.Module):  # type: ignore[misc, unused-ignore]
    """(rows, length) token numbers and mask -> (rows, labels) logits. `vectors`: (tokens, width), to begin with."""

    def __init__(self, vectors: torch.Tensor, hidden: int, labels: int) -> None:
        super().__init__()
        self.table = torch.nn.Parameter(vectors.clone())
        self.hidden = torch.nn.Linear(vectors.shape[1], hidden)
        self.out = torch.nn.Linear(hidden, labels)
        self.scale = float(vectors.shape[1]) ** 0.5  # elements of a unit vector are small: about 1 each then

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        mask = attention_mask.unsqueeze(-1).to(self.table.dtype)
        pooled = functional.normalize((functional.embedding(input_ids, self.table) * mask).sum(1), dim=1)
        logits: torch.Tensor = self.out(torch.relu(self.hidden(pooled * self.scale)))
        return logits


def pruning_masks(student: torch.nn.Module, share: float) -> dict[str, torch.Tensor]:
    """By parameter name, 1 for what stays: the smallest `share` of all weights (biases apart) goes, over all matrices
    together. Han, Pool, Tran and Dally, "Learning both Weights and Connections" (NeurIPS 2015)."""
    matrices = {name: weights.detach().abs() for name, weights in student.named_parameters() if weights.dim() > 1}
    flat = torch.cat([weights.flatten() for weights in matrices.values()])
    kept = torch.ones_like(flat)
    kept[flat.argsort(stable=True)[: int(share * len(flat))]] = 0.0  # exactly so many, also where some are equal
    parts = kept.split([weights.numel() for weights in matrices.values()])
    return {name: part.view_as(matrices[name]) for name, part in zip(matrices, parts, strict=True)}


def apply_masks(student: torch.nn.Module, masks: Mapping[str, torch.Tensor]) -> None:
    with torch.no_grad():
        for name, weights in student.named_parameters():
            if name in masks:
                weights.mul_(masks[name])
