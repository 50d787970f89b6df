"""The student model: a table of token vectors, their normalised sum, and two layers."""

from __future__ import annotations

import torch
from torch.nn import functional


class Student(torch.nn.Module):  # type: ignore[misc, unused-ignore]
    """A model from token numbers and mask, each (rows, length), to logits (rows, labels).

    `vectors` initialise the table; their shape is (tokens, width). With `places`, of shape (tokens,), a token's vector
    is the row of the table at its place.
    """

    places: torch.Tensor | None

    def __init__(self, vectors: torch.Tensor, hidden: int, labels: int) -> None:
        super().__init__()
        self.table = torch.nn.Parameter(vectors.clone())
        self.hidden = torch.nn.Linear(vectors.shape[1], hidden)
        self.out = torch.nn.Linear(hidden, labels)
        self.register_buffer("places", None)
        self.scale = float(vectors.shape[1]) ** 0.5  # scales the small elements of a unit vector to about 1

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        if self.places is not None:
            input_ids = self.places[input_ids]
        mask = attention_mask.unsqueeze(-1).to(self.table.dtype)
        pooled = functional.normalize((functional.embedding(input_ids, self.table) * mask).sum(1), dim=1)
        logits: torch.Tensor = self.out(torch.relu(self.hidden(pooled * self.scale)))
        return logits
