"""Prunes weights by magnitude, and keeps them at zero in the epochs that follow."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch


class Pruning:
    """Prunes the share `share` of a model's weights; 0 means none. From `begin` on, each `apply` sets them to zero."""

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
    """Return masks by parameter name, with 1 for weights that stay.

    The smallest `share` of all weights is pruned, over all matrices together, without the biases. The source is Han,
    Pool, Tran and Dally, "Learning both Weights and Connections" (NeurIPS 2015).
    """
    matrices = {name: weights.detach().abs() for name, weights in model.named_parameters() if weights.dim() > 1}
    flat = torch.cat([weights.flatten() for weights in matrices.values()])
    mask = torch.ones_like(flat)
    mask[flat.argsort(stable=True)[: int(share * len(flat))]] = 0.0  # an exact count, also with equal weights
    parts = mask.split([weights.numel() for weights in matrices.values()])
    return {name: part.view_as(matrices[name]) for name, part in zip(matrices, parts, strict=True)}


def apply_masks(model: torch.nn.Module, masks: Mapping[str, torch.Tensor]) -> None:
    with torch.no_grad():
        for name, weights in model.named_parameters():
            if name in masks:
                weights.mul_(masks[name])


def zeros_of(model: torch.nn.Module) -> float:
    """Return the share of zeros among a model's weights, without the biases."""
    weights = torch.cat([each.detach().flatten() for each in model.parameters() if each.dim() > 1])
    return float((weights == 0).float().mean())
