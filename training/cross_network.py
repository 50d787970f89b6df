"""The cross-encoder as a torch module: some layers of the embedder over both questions together, and one logit."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from tokenizers import Tokenizer
from torch import nn

from gateway.adapters.onnx.cross_encoder import WordTable
from training.pair import Pair

WIDTH = 384
POSITIONS = 128  # of the embedder's 512: two questions of 60 tokens
HEAD = 128
CLS, SEP = 101, 102  # of the uncased BERT vocabulary
Read = tuple[list[int], list[int], float]  # tokens of the one, of the other, label


class Network(nn.Module):  # type: ignore[misc, unused-ignore]
    """Takes word embeddings, not ids: the table is the embedder's own, frozen, and not part of these weights."""

    def __init__(self, source: Path, layers: Sequence[int]) -> None:
        super().__init__()
        bert = transformers.AutoModel.from_pretrained(
            source, attn_implementation="eager", add_pooling_layer=False, dtype=torch.float32
        )
        bert.encoder.layer = nn.ModuleList(bert.encoder.layer[at] for at in layers)
        bert.config.num_hidden_layers = len(layers)
        positions = nn.Embedding(POSITIONS, WIDTH)
        positions.weight.data = bert.embeddings.position_embeddings.weight.data[:POSITIONS].clone()
        bert.embeddings.position_embeddings = positions
        bert.embeddings.word_embeddings = nn.Embedding(1, WIDTH)  # never looked up
        bert.embeddings.word_embeddings.weight.requires_grad = False
        self.bert = bert
        self.head = nn.Sequential(nn.Linear(3 * WIDTH, HEAD), nn.GELU(), nn.Dropout(0.1), nn.Linear(HEAD, 1))

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


class Reader:
    """Texts to tokens, each text once."""

    def __init__(self, tokenizer_file: Path) -> None:
        self._tokenizer = Tokenizer.from_file(str(tokenizer_file))
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()
        self._known: dict[str, list[int]] = {}

    def __call__(self, text: str) -> list[int]:
        """Return the tokens without [CLS] and [SEP]."""
        if text not in self._known:
            self._known[text] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return self._known[text]

    def read(self, pairs: Iterable[Pair], longest: int) -> Iterator[Read]:
        """Yield pairs of at most `longest` tokens. Longer ones are left out, since their ends would be unseen."""
        for pair in pairs:
            one, two = self(pair.asked), self(pair.stored)
            if len(one) + len(two) + 3 <= longest:
                yield one, two, float(pair.same)


def batch(rows: Sequence[Read], table: WordTable) -> dict[str, Any]:
    """Return the tensors of one batch, padded with [PAD]; the one question comes first, the other second."""
    length = max(len(one) + len(two) for one, two, _ in rows) + 3
    ids = np.zeros((len(rows), length), np.int64)
    mask, types = np.zeros_like(ids), np.zeros_like(ids)
    for at, (one, two, _) in enumerate(rows):
        joined = [CLS, *one, SEP, *two, SEP]
        ids[at, : len(joined)] = joined
        mask[at, : len(joined)] = 1
        types[at, len(one) + 2 : len(joined)] = 1
    return {
        "word_embeddings": torch.from_numpy(table(ids)),
        "attention_mask": torch.from_numpy(mask),
        "token_type_ids": torch.from_numpy(types),
    }
