"""Converts an int8 graph to float32. This is a script, not a module of the gateway.

`nearhit model triton` runs it inside the build environment, which has onnx. It imports nothing of `gateway`.

    python dequantize.py SOURCE.onnx TARGET.onnx [--words EMBEDDER.onnx]

An int8 graph scales its activations over a whole pass, so the result of a row depends on the rest of its batch. That
is wrong for a server that batches requests of several gateways. The converted graph keeps the values of the int8
weights, and its activations are float32.

With `--words` the source is the cross-encoder. The result takes `input_ids`, `attention_mask` and `token_type_ids`,
int64 of shape (batch, length). It returns `logit`, float32 of shape (batch, 1).
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

TABLE = "transformer.embeddings.word_embeddings.weight_"  # prefix of three tensors in the embedder's graph
INT8 = {"MatMulInteger", "DynamicQuantizeLinear", "QuantizeLinear", "MatMulIntegerToFloat", "QAttention"}
Array = NDArray[np.generic]


def floats(quantised: Array, scale: Array, zero: Array) -> NDArray[np.float32]:
    """Return the float32 values. Scale and zero point are single values, or one per column."""
    return (quantised.astype(np.float32) - zero.astype(np.float32)) * scale.astype(np.float32)


def unquantised(graph: onnx.GraphProto) -> None:
    """Replace the int8 operators by float32 operators, in place.

    A traced graph has DynamicQuantizeLinear > MatMulInteger > Cast > Mul. The graph of export.py has QuantizeLinear
    before MatMulIntegerToFloat and QAttention.
    """
    tensors: dict[str, Array] = {each.name: numpy_helper.to_array(each) for each in graph.initializer}
    made = {name: node for node in graph.node for name in node.output}
    readers = {name: node for node in graph.node for name in node.input if node.op_type in ("Cast", "Mul")}

    def weights(name: str, scale: str, zero: str | None) -> str:
        float_name = f"{name}_float"
        if float_name not in tensors:
            tensors[float_name] = floats(tensors[name], tensors[scale], tensors[zero] if zero else np.zeros(1))
            graph.initializer.append(numpy_helper.from_array(tensors[float_name], float_name))
        return float_name

    for node in list(graph.node):
        if node.op_type == "MatMulInteger":
            cast = readers[node.output[0]]
            scaled = readers[cast.output[0]]
            scales = made[next(name for name in scaled.input if name != cast.output[0])]
            scale = next(name for name in scales.input if name in tensors)
            value = made[node.input[0]].input[0]
            product = [helper.make_node("MatMul", [value, weights(node.input[1], scale, node.input[3])], scaled.output)]
            graph.node.remove(scaled)
            graph.node.remove(cast)
        elif node.op_type == "MatMulIntegerToFloat":
            value, (columns, scale, bias) = made[node.input[0]].input[0], (node.input[i] for i in (1, 3, 6))
            flat = f"{node.output[0]}_product"
            product = [
                helper.make_node("MatMul", [value, weights(columns, scale, None)], [flat]),
                helper.make_node("Add", [flat, bias], node.output),
            ]
        elif node.op_type == "QAttention":
            value, (columns, bias, scale, mask) = made[node.input[0]].input[0], (node.input[i] for i in (1, 2, 4, 5))
            inputs = [value, weights(columns, scale, None), bias, mask]
            heads = next(each.i for each in node.attribute if each.name == "num_heads")
            product = [helper.make_node("Attention", inputs, node.output, domain=node.domain, num_heads=heads)]
        else:
            continue
        place = list(graph.node).index(node)
        graph.node.remove(node)
        for each in reversed(product):
            graph.node.insert(place, each)


def with_words(graph: onnx.GraphProto, embedder: onnx.GraphProto) -> None:
    """Replace the input `word_embeddings` by `input_ids` and a lookup in the table of the embedder."""
    tensors = {each.name: numpy_helper.to_array(each) for each in embedder.initializer if each.name.startswith(TABLE)}
    rows, scale, zero = (tensors[TABLE + part] for part in ("quantized", "scale", "zero_point"))
    graph.initializer.append(numpy_helper.from_array(floats(rows, scale, zero), "words"))
    graph.node.insert(0, helper.make_node("Gather", ["words", "input_ids"], ["word_embeddings"], "words_gather"))
    given = next(each for each in graph.input if each.name == "word_embeddings")
    graph.input.remove(given)
    graph.input.insert(0, helper.make_tensor_value_info("input_ids", onnx.TensorProto.INT64, ["batch", "length"]))


def as_rows(graph: onnx.GraphProto) -> None:
    """Give `logit` the shape (batch, 1), because a server that batches needs one row per request."""
    graph.initializer.append(numpy_helper.from_array(np.array([-1, 1], np.int64), "row_shape"))
    last = next(node for node in graph.node if "logit" in node.output)
    last.output[list(last.output).index("logit")] = "logit_flat"
    graph.node.append(helper.make_node("Reshape", ["logit_flat", "row_shape"], ["logit"], "logit_rows"))
    del graph.output[:]
    graph.output.append(helper.make_tensor_value_info("logit", onnx.TensorProto.FLOAT, ["batch", 1]))


def remove_unused(graph: onnx.GraphProto) -> None:
    """Remove the nodes and tensors that nothing reads any more."""
    wanted = {each.name for each in graph.output}
    used = []
    for node in reversed(graph.node):
        if wanted & set(node.output):
            wanted |= set(node.input)
            used.append(node)
    tensors = [each for each in graph.initializer if each.name in wanted]
    del graph.node[:], graph.initializer[:], graph.value_info[:]
    graph.node.extend(reversed(used))
    graph.initializer.extend(tensors)


def write(source: Path, target: Path, words: Path | None = None) -> None:
    """Write the float32 graph. `words` is the graph of the embedder, for a cross-encoder.

    Raises ValueError if an int8 operator is left.
    """
    model = onnx.load(source)
    unquantised(model.graph)
    if words is not None:
        with_words(model.graph, onnx.load(words).graph)
        as_rows(model.graph)
    remove_unused(model.graph)
    left = {node.op_type for node in model.graph.node} & INT8
    if left:
        raise ValueError(f"the graph still has {', '.join(sorted(left))}")
    onnx.checker.check_model(model)
    onnx.save(model, target)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path, help="an int8 graph")
    parser.add_argument("target", type=Path, help="the file to write")
    parser.add_argument("--words", type=Path, help="the embedder's graph, which has the word table of a cross-encoder")
    given = parser.parse_args()
    try:
        write(given.source, given.target, given.words)
    except ValueError as error:
        print(error, file=sys.stderr)  # noqa: T201 - the caller of this script reads this line
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
