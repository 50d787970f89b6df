"""Removes units of the hidden layer and token vectors, so that file and graph get smaller."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from .student import Student


def prune_units(student: Student, share: float) -> None:
    """Remove the share `share` of the hidden units, rounded down. At least one unit stays.

    A unit has weights towards its input and weights towards the labels. Those with the smallest product of both norms
    go. The source of ranking by norm is Li, Kadav, Durdanovic, Samet and Graf, "Pruning Filters for Efficient ConvNets"
    (ICLR 2017).
    """
    hidden, out = student.hidden, student.out
    weight = hidden.weight.detach().norm(dim=1) * out.weight.detach().norm(dim=0)
    count = max(1, len(weight) - int(share * len(weight)))
    stay = weight.argsort(descending=True, stable=True)[:count].sort().values
    student.hidden = _linear(hidden.weight[stay], hidden.bias[stay])
    student.out = _linear(out.weight[:, stay], out.bias)


def drop_unused_tokens(student: Student, used: Sequence[int], tokens: int) -> None:
    """Give all tokens but `used` a vector of zeros, which they share. The rows of the table belong to `used`, in order.

    A text's vector is the sum of its tokens' vectors, so that such a token says nothing. `tokens` is the size of the
    vocabulary.
    """
    table = student.table.detach()
    places = torch.full((tokens,), len(used), dtype=torch.int32)
    places[list(used)] = torch.arange(len(used), dtype=torch.int32)
    student.table = torch.nn.Parameter(torch.cat([table, torch.zeros(1, table.shape[1])]))
    student.places = places


def _linear(weight: torch.Tensor, bias: torch.Tensor) -> torch.nn.Linear:
    layer = torch.nn.Linear(weight.shape[1], weight.shape[0])
    layer.weight, layer.bias = torch.nn.Parameter(weight.detach().clone()), torch.nn.Parameter(bias.detach().clone())
    return layer
