"""Magnitude pruning with epochs after it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch


class Pruning:
    """Of `share` of a model's weights, 0 for none: from `begin` on they are zero after each `apply`."""

    def __init__(self, model: torch.nn.Module, share: float) -> None:
        self._model, self._share = model, share
        self._masks: dict[str, torch.Tensor] = {}

    def begin(self) -> None:
        self._masks = pruning_masks(self._model, self._share)
        self.apply()

    def apply(self) -> None:
        apply_masks(self._model, self._masks)

    def state_dict(self) -> dict[str, Any]:
        return dict(self._masks)

    def load_state_dict(self, state: dict[str, Any], /) -> None:
        self._masks = state


def pruning_masks(model: torch.nn.Module, share: float) -> dict[str, torch.Tensor]:
    """By parameter name, 1 for what stays: the smallest `share` of all weights (biases apart) goes, over all matrices
    together. Han, Pool, Tran and Dally, "Learning both Weights and Connections" (NeurIPS 2015)."""
    matrices = {name: weights.detach().abs() for name, weights in model.named_parameters() if weights.dim() > 1}
    flat = torch.cat([weights.flatten() for weights in matrices.values()])
    kept = torch.ones_like(flat)
    kept[flat.argsort(stable=True)[: int(share * len(flat))]] = 0.0  # exactly so many, also where some are equal
    parts = kept.split([weights.numel() for weights in matrices.values()])
    return {name: part.view_as(matrices[name]) for name, part in zip(matrices, parts, strict=True)}


def apply_masks(model: torch.nn.Module, masks: Mapping[str, torch.Tensor]) -> None:
    with torch.no_grad():
        for name, weights in model.named_parameters():
            if name in masks:
                weights.mul_(masks[name])


def zeros_of(model: torch.nn.Module) -> float:
    """The share of a model's weights, biases apart, that are zero."""
    weights = torch.cat([each.detach().flatten() for each in model.parameters() if each.dim() > 1])
    return float((weights == 0).float().mean())
