"""The cross-encoder as a torch module, read from its int8 graph and written as one.

The shipped weights exist only as int8 ONNX. `load` turns them into float32 weights of the same shape. The names of the
modules are those of `training.cross_network`, by which the graph names every weight.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from numpy.typing import NDArray
from torch import nn

from . import graph

INPUTS = ("word_embeddings", "attention_mask", "token_type_ids")
DROPOUT = 0.1  # the value of BERT


@dataclass(frozen=True, slots=True)
class Row:
    """A pair of questions as one input."""

    ids: Sequence[int]  # rows of the word table: [CLS] first [SEP] second [SEP]
    second_at: int  # position of the second question's first token
    target: float  # label in [0, 1]
    weight: float = 1.0


class Network(nn.Module):  # type: ignore[misc, unused-ignore]
    """It takes word embeddings, not ids: the table is the embedder's own, frozen, and not part of these weights."""

    def __init__(self, layers: int, width: int, inner: int, positions: int, head: int) -> None:
        super().__init__()
        config = transformers.BertConfig(
            vocab_size=1, hidden_size=width, num_hidden_layers=layers, num_attention_heads=width // graph.HEAD_SIZE,
            intermediate_size=inner, max_position_embeddings=positions, hidden_dropout_prob=DROPOUT,
            attention_probs_dropout_prob=DROPOUT, attn_implementation="eager",
        )  # fmt: skip
        self.bert = transformers.BertModel(config, add_pooling_layer=False)
        self.bert.embeddings.word_embeddings.weight.requires_grad = False  # never looked up
        self.head = nn.Sequential(nn.Linear(3 * width, head), nn.GELU(), nn.Dropout(DROPOUT), nn.Linear(head, 1))

    def forward(
        self, word_embeddings: torch.Tensor, attention_mask: torch.Tensor, token_type_ids: torch.Tensor
    ) -> torch.Tensor:
        """Return (batch,) logits. The head sees [CLS], and how the means of the two questions differ and agree."""
        hidden = self.bert(
            inputs_embeds=word_embeddings, attention_mask=attention_mask, token_type_ids=token_type_ids
        ).last_hidden_state
        second = (token_type_ids * attention_mask).unsqueeze(-1).to(hidden.dtype)
        first = ((1 - token_type_ids) * attention_mask).unsqueeze(-1).to(hidden.dtype)
        one = (hidden * first).sum(1) / first.sum(1)
        two = (hidden * second).sum(1) / second.sum(1)
        logits: torch.Tensor = self.head(torch.cat([hidden[:, 0], (one - two).abs(), one * two], dim=1)).squeeze(1)
        return logits


def load(path: Path) -> Network:
    """Return the network of an int8 graph. Raise ValueError where the graph has another shape."""
    try:
        weights = graph.read(path)
        positions, width, inner, head = graph.sizes_of(weights)
        network = Network(graph.layers_of(weights), width, inner, positions, head)
        state = {name: torch.from_numpy(np.array(each, np.float32)) for name, each in weights.items()}
        given = network.state_dict()
        state |= {name: each for name, each in given.items() if name not in state and _is_fixed(name)}
        network.load_state_dict(state)
    except (KeyError, ValueError, RuntimeError) as error:
        raise ValueError(f"{path.name} is not a cross-encoder of the expected shape: {error}") from None
    return network


def _is_fixed(name: str) -> bool:
    """Return whether a tensor is a buffer, or the table of words that is never looked up."""
    return name.endswith("_ids") or name == "bert.embeddings.word_embeddings.weight"


def save(network: Network, target: Path) -> None:
    """Write the int8 graph. Each operator scales its activations by itself, over each pass."""
    graph.write({name: each.float().numpy() for name, each in network.state_dict().items()}, target)


def batch(rows: Sequence[Row], words: NDArray[Any]) -> dict[str, torch.Tensor]:
    """Return the inputs of some rows, padded. Row 0 of `words`, of shape (words, width), embeds [PAD]."""
    length = max(len(row.ids) for row in rows)
    ids = np.zeros((len(rows), length), np.int64)
    mask, types = np.zeros_like(ids), np.zeros_like(ids)
    for at, row in enumerate(rows):
        ids[at, : len(row.ids)] = row.ids
        mask[at, : len(row.ids)] = 1
        types[at, row.second_at : len(row.ids)] = 1
    tensors = (words[ids].astype(np.float32), mask, types)
    return {name: torch.from_numpy(each) for name, each in zip(INPUTS, tensors, strict=True)}
