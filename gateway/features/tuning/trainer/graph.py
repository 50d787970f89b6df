"""The int8 graph of the cross-encoder: written node by node from its weights, and read back.

A traced graph has 190 nodes, and its attention has twelve for each layer. This one has 73, with one `QAttention` for
each layer, as the embedder's graph does (docs/decisions/0033). A pair of 29 tokens takes a fifth less time. The scales
of the activations are those of each pass, so the logits are those of the traced graph but for .005.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

OPSET = 17
FUSED = "com.microsoft"  # operators of onnxruntime outside the ONNX standard
HEAD_SIZE = 32  # dimensions of one attention head in all-MiniLM-L6-v2
EPSILON = 1e-12  # for the layer norms, from the model's config.json
LAYER = re.compile(r"bert\.encoder\.layer\.(\d+)\.")
PARTS = ("query", "key", "value")
TABLES = ("bert.embeddings.position_embeddings.weight", "bert.embeddings.token_type_embeddings.weight")
Array = NDArray[np.float32]
Weights = Mapping[str, Array]
"""The weights by the names of their modules. A matrix is (outputs, inputs), as torch has it."""


def layers_of(weights: Weights) -> int:
    """Return the number of layers. Raise ValueError where there is none."""
    return 1 + max(int(match[1]) for name in weights if (match := LAYER.match(name)))


class _Writer:
    """Collects nodes and constants. Values are identified by their names."""

    def __init__(self, weights: Weights) -> None:
        self.weights = weights
        self.nodes: list[Any] = []
        self.constants: list[Any] = []

    def constant(self, name: str, array: Any) -> str:
        self.constants.append(numpy_helper.from_array(np.array(array, order="C"), name))
        return name

    def weight(self, name: str) -> str:
        return self.constant(name, self.weights[name])

    def add(self, operator: str, *inputs: str, output: str = "", domain: str = "", **attributes: Any) -> str:
        """Add a node and return the name of its only output."""
        output = output or f"{operator}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, inputs, [output], domain=domain, **attributes))
        return output

    def table(self, name: str) -> str:
        """Add a table as uint8, and return its float32 values."""
        rows, scale, zero = _as_bytes(self.weights[name])
        parts = self.constant(f"{name}_quantized", rows), self.constant(f"{name}_scale", scale)
        return self.add("DequantizeLinear", *parts, self.constant(f"{name}_zero_point", zero))

    def quantised(self, value: str) -> tuple[str, str, str]:
        """Quantise a value with a scale of its own. Return the uint8 value, its scale and its zero point."""
        names = [f"{value}_{part}" for part in ("quantized", "scale", "zero_point")]
        self.nodes.append(helper.make_node("DynamicQuantizeLinear", [value], names))
        return names[0], names[1], names[2]

    def matrix(self, name: str, weights: Array) -> tuple[str, str]:
        columns, scale = _per_column(weights.T)
        return self.constant(f"{name}_quantized", columns), self.constant(f"{name}_scale", scale)

    def dense(self, value: str, name: str) -> str:
        weights, scale = self.matrix(f"{name}.weight", self.weights[f"{name}.weight"])
        read, its_scale, its_zero = self.quantised(value)
        inputs = (read, weights, its_scale, scale, its_zero, "", self.weight(f"{name}.bias"))
        return self.add("MatMulIntegerToFloat", *inputs, domain=FUSED)

    def normed(self, value: str, name: str) -> str:
        weights = self.weight(f"{name}.weight"), self.weight(f"{name}.bias")
        return self.add("LayerNormalization", value, *weights, axis=-1, epsilon=EPSILON)

    def attention(self, value: str, mask: str, name: str) -> str:
        """Add one node for all heads of query, key and value."""
        joined = np.concatenate([self.weights[f"{name}.{part}.weight"] for part in PARTS])
        bias = np.concatenate([self.weights[f"{name}.{part}.bias"] for part in PARTS])
        weights, scale = self.matrix(f"{name}.weight", joined)
        read, its_scale, its_zero = self.quantised(value)
        zero = self.constant(f"{name}.weight_zero_point", np.zeros(len(bias), np.int8))
        inputs = (read, weights, self.constant(f"{name}.bias", bias), its_scale, scale, mask, its_zero, zero)
        return self.add("QAttention", *inputs, domain=FUSED, num_heads=joined.shape[1] // HEAD_SIZE)

    def layer(self, value: str, mask: str, name: str) -> str:
        attended = self.dense(self.attention(value, mask, f"{name}.attention.self"), f"{name}.attention.output.dense")
        value = self.normed(self.add("Add", attended, value), f"{name}.attention.output.LayerNorm")
        inner = self.add("Gelu", self.dense(value, f"{name}.intermediate.dense"), domain=FUSED)
        outer = self.dense(inner, f"{name}.output.dense")
        return self.normed(self.add("Add", outer, value), f"{name}.output.LayerNorm")

    def embedded(self) -> str:
        """Add positions and types to the words, and return the normalised sum."""
        places, types = map(self.table, TABLES)
        length = self.add("Shape", "attention_mask", start=1, end=2)
        placed = self.add("Slice", places, self.constant("begin", np.zeros(1, np.int64)), length)
        typed = self.add("Add", "word_embeddings", self.add("Gather", types, "token_type_ids"))
        return self.normed(self.add("Add", typed, placed), "bert.embeddings.LayerNorm")

    def mean(self, value: str, tokens: str, axis: str) -> str:
        """Return the mean of the tokens whose weight is 1: (batch, width)."""
        total = self.add("Squeeze", self.add("MatMul", self.add("Unsqueeze", tokens, axis), value), axis)
        return self.add("Div", total, self.add("ReduceSum", tokens, axis, keepdims=1))

    def head(self, value: str) -> None:
        """Add the logit of [CLS], and of how the means of the two questions differ and agree."""
        axis = self.constant("axis", np.ones(1, np.int64))
        real, types = (self.add("Cast", name, to=TensorProto.FLOAT) for name in ("attention_mask", "token_type_ids"))
        second = self.add("Mul", real, types)
        one = self.mean(value, self.add("Sub", real, second), axis)
        two = self.mean(value, second, axis)
        first_token = self.add("Gather", value, self.constant("first", np.array(0, np.int64)), axis=1)
        parts = (first_token, self.add("Abs", self.add("Sub", one, two)), self.add("Mul", one, two))
        inner = self.add("Gelu", self.dense(self.add("Concat", *parts, axis=1), "head.0"), domain=FUSED)
        self.add("Squeeze", self.dense(inner, "head.3"), axis, output="logit")


def write(weights: Weights, target: Path) -> None:
    """Write the int8 graph. Raise KeyError where a weight is missing.

    It takes `word_embeddings`, float32 (batch, length, width), `attention_mask` and `token_type_ids`, int64 (batch,
    length), and returns `logit`, float32 (batch,).
    """
    writer = _Writer(weights)
    mask = writer.add("Cast", "attention_mask", to=TensorProto.INT32)
    value = writer.embedded()
    for number in range(layers_of(weights)):
        value = writer.layer(value, mask, f"bert.encoder.layer.{number}")
    writer.head(value)
    width, info = weights[TABLES[0]].shape[1], helper.make_tensor_value_info
    made = helper.make_graph(
        writer.nodes,
        "cross-encoder",
        [
            info("word_embeddings", TensorProto.FLOAT, ["batch", "length", width]),
            *(info(name, TensorProto.INT64, ["batch", "length"]) for name in ("attention_mask", "token_type_ids")),
        ],
        [info("logit", TensorProto.FLOAT, ["batch"])],
        writer.constants,
    )
    opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid(FUSED, 1)]
    onnx.save(helper.make_model(made, opset_imports=opsets, ir_version=8), target)


def _per_column(weights: Array) -> tuple[NDArray[np.int8], Array]:
    """Return weights of shape (in, out) as int8, with the scale of each column. Zero stays zero."""
    most = np.abs(weights).max(0)
    scale = (np.where(most > 0.0, most, 1.0) / 127).astype(np.float32)
    return np.clip(np.rint(weights / scale), -127, 127).astype(np.int8), scale


def _as_bytes(table: Array) -> tuple[NDArray[np.uint8], np.float32, np.uint8]:
    """Return a table as uint8, with one scale and one zero point."""
    low, high = min(table.min(), np.float32(0)), max(table.max(), np.float32(0))
    scale = np.float32((high - low) / np.float32(255))
    zero = np.uint8(np.rint(-low / scale))
    return np.clip(np.rint(table / scale) + zero, 0, 255).astype(np.uint8), scale, zero


def read(path: Path) -> dict[str, Array]:
    """Return the float32 weights of a graph of `write`, or of one that was traced, by the names of their modules.

    A value is (quantised - zero point) * scale, with one scale for each column of a matrix. Versions that older
    releases tuned are traced. Raise KeyError where a scale is missing.
    """
    graph = onnx.load(path).graph
    tensors = {each.name: numpy_helper.to_array(each) for each in graph.initializer}
    parts = ("_quantized", "_scale", "_zero_point")
    floats = {name: each for name, each in tensors.items() if name.startswith(("bert.", "head."))}
    floats = {name: np.array(each, np.float32) for name, each in floats.items() if not name.endswith(parts)}
    traced = {node.input[1]: node.output[0] for node in graph.node if node.op_type == "MatMulInteger"}
    for name in [name for name in tensors if name.endswith("_quantized")]:
        stem = name.removesuffix("_quantized")
        zero = tensors.get(f"{stem}_zero_point", np.zeros(1))
        values = ((tensors[name].astype(np.float32) - zero) * tensors[f"{stem}_scale"]).astype(np.float32)
        if stem in TABLES:
            floats[stem] = values
        elif stem.endswith(".attention.self.weight"):
            floats |= _divided(stem.removesuffix(".weight"), values.T, floats.pop(stem.replace(".weight", ".bias")))
        else:
            # The tracer names a transposed matrix by a number, and its product by the module.
            module = traced[name].split("/MatMul")[0].strip("/").replace("/", ".") if name in traced else ""
            floats[f"{module}.weight" if stem.startswith("onnx::") else stem] = values.T
    return floats


def _divided(name: str, joined: Array, bias: Array) -> dict[str, Array]:
    """Return the weights of query, key and value, which one product holds."""
    found: dict[str, Array] = {}
    for part, weights, its_bias in zip(PARTS, np.split(joined, 3), np.split(bias, 3), strict=True):
        found |= {f"{name}.{part}.weight": weights, f"{name}.{part}.bias": its_bias}
    return found


def sizes_of(weights: Weights) -> Sequence[int]:
    """Return the sizes of the network: positions, width, inner layer, and layer of the head. Raise KeyError."""
    positions, width = weights[TABLES[0]].shape
    return positions, width, len(weights["bert.encoder.layer.0.intermediate.dense.bias"]), len(weights["head.0.bias"])
