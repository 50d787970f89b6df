"""The teacher model: all-MiniLM with a linear head, for data with labels but without probabilities."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
import transformers
from torch.nn import functional

from .training import padded

CHUNK = 128  # texts that are embedded and saved together; a run that was killed resumes after the last chunk
STEPS, RATE, DECAY, SCALE = 400, 0.05, 1e-4, 16.0


class LargeModel(torch.nn.Module):  # type: ignore[misc, unused-ignore]
    """A model from token ids and mask, each (rows, length), to logits (rows, labels)."""

    def __init__(self, transformer: torch.nn.Module, labels: int) -> None:
        super().__init__()
        self.transformer = transformer
        self.head = torch.nn.Linear(transformer.config.hidden_size, labels)

    def embed(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        hidden = self.transformer(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        mask = attention_mask.unsqueeze(-1).to(hidden.dtype)
        return functional.normalize((hidden * mask).sum(1), dim=1) * SCALE

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.head(self.embed(input_ids, attention_mask))
        return logits


def large(source: Path, labels: int, layers: int) -> LargeModel:
    """Load the teacher with eager attention, because the opset of the export has no operator for fused attention."""
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    transformer = transformers.AutoModel.from_pretrained(
        source, attn_implementation="eager", add_pooling_layer=False, dtype=torch.float32, num_hidden_layers=layers
    )
    model = LargeModel(transformer, labels)
    model.eval()
    return model


def embed_rows(
    model: LargeModel, rows: Sequence[Sequence[int]], folder: Path, on_rows: Callable[[int], None]
) -> torch.Tensor:
    """Return the vectors of all rows, (rows, width). Reuse the chunks that are in `folder`.

    Rows of similar length share a chunk, which halves the time.
    """
    folder.mkdir(parents=True, exist_ok=True)
    parts = []
    order = sorted(range(len(rows)), key=lambda row: len(rows[row]))
    for at in range(0, len(rows), CHUNK):
        file = folder / f"{at}.npy"
        if not file.exists():
            with torch.no_grad():
                vectors = model.embed(*padded([rows[row] for row in order[at : at + CHUNK]])).numpy()
            with (partial := file.with_suffix(".part")).open("wb") as out:
                np.save(out, vectors)
            os.replace(partial, file)  # noqa: PTH105
        parts.append(torch.from_numpy(np.load(file)))
        on_rows(len(parts[-1]))
    return torch.cat(parts)[torch.tensor(order).argsort()]


def fit(model: LargeModel, vectors: torch.Tensor, labels: torch.Tensor) -> None:
    """Train the head alone, with all rows in each step."""
    optimiser = torch.optim.AdamW(model.head.parameters(), lr=RATE, weight_decay=DECAY)
    for step in range(STEPS):
        for group in optimiser.param_groups:
            group["lr"] = RATE * (1.0 - step / STEPS)
        loss = functional.cross_entropy(model.head(vectors), labels)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
