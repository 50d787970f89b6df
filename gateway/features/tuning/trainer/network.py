"""The cross-encoder as a torch module, read from its int8 graph and written as one.

The shipped weights exist only as int8 ONNX. `load` turns them into float32 weights of the same shape. The names of the
modules are those that the graph was traced from (`training.cross_network`), so the graph names every weight itself.
"""

from __future__ import annotations

import logging
import re
import tempfile
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
import transformers
from numpy.typing import NDArray
from onnx import numpy_helper
from onnxruntime.quantization import QuantType, quantize_dynamic
from torch import nn

OPSET = 17
HEAD_SIZE = 32  # dimensions of one attention head in all-MiniLM-L6-v2
INPUTS = ("word_embeddings", "attention_mask", "token_type_ids")
LAYER = re.compile(r"bert\.encoder\.layer\.(\d+)\.")
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
            vocab_size=1, hidden_size=width, num_hidden_layers=layers, num_attention_heads=width // HEAD_SIZE,
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


def load(graph: Path) -> Network:
    """Return the network of an int8 graph. Raise ValueError where the graph has another shape."""
    weights = float_weights(onnx.load(graph).graph)
    try:
        layers = 1 + max(int(match[1]) for name in weights if (match := LAYER.match(name)))
        positions, width = weights["bert.embeddings.position_embeddings.weight"].shape
        inner = len(weights["bert.encoder.layer.0.intermediate.dense.bias"])
        network = Network(layers, width, inner, positions, len(weights["head.0.bias"]))
        state = {name: torch.from_numpy(np.array(each, np.float32)) for name, each in weights.items()}
        given = network.state_dict()
        state |= {name: given[name] for name in ("bert.embeddings.word_embeddings.weight",)}
        state |= {name: each for name, each in given.items() if name.endswith("_ids")}  # buffers
        network.load_state_dict(state)
    except (KeyError, ValueError, RuntimeError) as error:
        raise ValueError(f"{graph.name} is not a cross-encoder of the expected shape: {error}") from None
    return network


def float_weights(graph: onnx.GraphProto) -> dict[str, NDArray[Any]]:
    """Return the weights of a dynamically quantised graph by the names of its modules.

    A value is (quantised - zero point) * scale, with one scale per column of a matrix. ONNX keeps a matrix as
    (inputs, outputs), torch as (outputs, inputs).
    """
    tensors = {each.name: numpy_helper.to_array(each) for each in graph.initializer}
    floats = {name: each for name, each in tensors.items() if name.startswith(("bert.", "head."))}
    matrices = {node.input[1]: node.output[0] for node in graph.node if node.op_type == "MatMulInteger"}
    for name in [name for name in tensors if name.endswith("_quantized")]:
        stem = name.removesuffix("_quantized")
        values = (tensors[name].astype(np.float32) - tensors[f"{stem}_zero_point"]) * tensors[f"{stem}_scale"]
        if name in matrices:
            values = values.T
            if stem.startswith("onnx::"):  # the tracer names a transposed matrix by number, its product by the module
                stem = matrices[name].split("/MatMul")[0].strip("/").replace("/", ".") + ".weight"
        floats[stem] = values
    parts = ("_quantized", "_scale", "_zero_point")
    return {name: each for name, each in floats.items() if not name.endswith(parts)}


def save(network: Network, target: Path) -> None:
    """Write the int8 graph. Each operator scales its activations by itself, over each pass."""
    width = network.head[0].in_features // 3
    sample = (torch.zeros(2, 8, width), torch.ones(2, 8, dtype=torch.int64), torch.zeros(2, 8, dtype=torch.int64))
    sample[2][:, 4:] = 1
    axes = {0: "batch", 1: "length"}
    with tempfile.TemporaryDirectory() as scratch, warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")  # the tracer warns about shapes; the held-out pairs check the result
        exact = Path(scratch) / "fp32.onnx"
        torch.onnx.export(
            network.eval(), sample, str(exact), dynamo=False, opset_version=OPSET, input_names=list(INPUTS),
            output_names=["logit"], dynamic_axes={**dict.fromkeys(INPUTS, axes), "logit": {0: "batch"}},
        )  # fmt: skip
        logging.disable(logging.WARNING)  # it recommends a step that only helps convolutions
        quantize_dynamic(exact, target, per_channel=True, weight_type=QuantType.QInt8)
        logging.disable(logging.NOTSET)


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
