"""Writes the published all-MiniLM-L6-v2 weights as one small int8 ONNX graph. A script, not a module of the gateway.

`nearhit model fetch` runs it with the gateway's own packages, and `onnx` and `safetensors` besides. It needs no torch:
the vectors of sentence-transformers, which are the reference, lie next to it (`python -m training.embedder_reference`
writes them). The script imports nothing of `gateway`.

    python export.py SOURCE_DIR TARGET_DIR

The script writes `model.onnx`, `tokenizer.json` and `export.json` (the build facts for the manifest). If the graph
deviates from the reference, it exits with 1 and prints one sentence on stderr.

The graph takes `input_ids` and `attention_mask`, int64 of shape (batch, length). It returns two outputs:

- `sentence_embedding`, float32 (batch, 384): mean-pooled, of unit length.
- `token_embeddings`, float32 (batch, length, 384): one vector of unit length per token. A late-interaction verifier
  compares them without a second forward pass.

The graph is written node by node and has 103 nodes. A traced graph has 532, and 160 after onnxruntime has fused them
(docs/decisions/0033).
"""

from __future__ import annotations

import argparse
import hashlib
import json
import platform
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import tokenizers
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from safetensors.numpy import load_file

MAX_TOKENS = 256  # the training limit, from sentence_bert_config.json
OPSET = 17
FUSED = "com.microsoft"  # operators of onnxruntime outside the ONNX standard
LAYERS, HEADS, WIDTH, INNER = 6, 12, 384, 1536
EPSILON = 1e-12  # for the layer norms, from config.json
# RANGES has the least and the largest input of the products of each layer, measured over `sentences()`. They are
# constants, so every machine exports the same file, and no text affects the vector of another one.
# FAR has the channels whose values are up to ten times as large as all others (channel 99 reaches 30). Their values are
# divided by the power of two given here, and their rows of the product are multiplied by it. Otherwise one step of the
# scale would be as wide as most values (agreement 0.9925 instead of 0.9972, docs/decisions/0033).
PRODUCTS = ("attention.self", "attention.output.dense", "intermediate.dense", "output.dense")
FAR: tuple[tuple[dict[int, int], ...], ...] = (
    ({}, {}, {63: 4, 99: 8, 157: 2, 267: 2, 303: 2}, {856: 4}),
    ({}, {}, {63: 2, 99: 8, 157: 2, 223: 2, 267: 2, 338: 2}, {607: 4}),
    ({}, {}, {63: 2, 99: 8, 157: 2, 223: 4, 338: 2}, {218: 2, 1004: 2}),
    ({63: 2, 99: 4, 157: 2, 223: 2}, {}, {63: 2, 99: 8, 157: 2, 223: 4, 338: 2}, {}),
    ({63: 2, 99: 4, 157: 2, 223: 2, 338: 2}, {}, {63: 2, 99: 8, 127: 4, 157: 2, 223: 4}, {}),
    ({99: 4, 157: 2, 223: 2, 338: 2}, {}, {99: 4, 127: 2, 223: 4, 319: 2}, {}),
)
RANGES = (  # after that division
    ((-2.65, 6.34), (-3.10, 1.98), (-3.90, 4.30), (-0.17, 6.15)),
    ((-4.14, 8.14), (-2.45, 3.01), (-4.74, 4.63), (-0.17, 6.59)),
    ((-5.39, 8.00), (-2.34, 2.43), (-4.23, 4.53), (-0.17, 8.78)),
    ((-4.63, 4.02), (-2.32, 2.40), (-4.21, 4.57), (-0.17, 13.72)),
    ((-4.12, 4.49), (-2.52, 2.73), (-4.71, 3.82), (-0.17, 6.67)),
    ((-4.39, 4.21), (-3.12, 3.24), (-3.74, 4.25), (-0.17, 6.64)),
)
# float16: that moves a cosine by 1e-6.
REFERENCE_FILE = Path(__file__).with_name("reference_vectors.npz")
MIN_MEAN_COSINE = 0.995  # measured: 0.9972; with scales of each pass 0.9932, with one per weight tensor 0.972

TOPICS = (
    "a parental leave policy", "the 2024 tax return for a small company", "Kubernetes pod eviction",
    "insulin dosage for children", "a lost credit card", "the French Revolution", "binary search trees",
    "refunds on cancelled flights", "photosynthesis in desert plants", "noise-cancelling headphones",
    "converting 26 miles to kilometres", "a landlord who keeps the deposit",
)  # fmt: skip
FRAMES = (
    "What is {}?", "How do I deal with {} step by step?", "Explain {} to a ten-year-old.",
    "Why does {} matter, and to whom?", "Write a two-sentence summary of {}.", "{}",
    "I have read three articles about {} and they contradict each other; which points are not disputed?",
    "Is there any reason not to ask my manager about {} before Friday 17:30?",
    "List 5 common mistakes people make with {}, the most expensive one first.",
    "Compare {} with how it was handled ten years ago.", "Translate 'I need help with {}' into Spanish.",
    "hey can u help me w {} pls, its urgent!!", "SELECT * FROM faq WHERE topic = '{}' ORDER BY views DESC;",
)  # fmt: skip
OTHERS = (
    "", "?", "2021", "2022", "ok", "def add(a, b):\n    return a + b", "E = mc^2", "\N{GRINNING FACE} great, thanks!",
    "Not all swans are white.", "All swans are not white.", "km to miles", "miles to km",
    "Turn the living room lights off.", "Turn the living room lights on.", '{"user": 17, "active": false}',
    "https://example.com/orders?id=4711&lang=de", "Traceback (most recent call last): KeyError: 'name'",
    "Wie kann ich mein Passwort zurücksetzen?", "Wann muss ich die Umsatzsteuer abführen?",
    "Der Zug nach Zürich fällt heute aus.", "Welche Unterlagen brauche ich für den Mietvertrag?",
    "如何重置我的密码？", "北京明天的天气怎么样？", "请用三句话总结这篇文章。", "机器学习和深度学习有什么区别？",
    "¿Cómo puedo restablecer mi contraseña?", "¿Cuál es la capital de Australia?",
    "El pedido llegó roto y quiero una devolución.", "Resume este contrato en cinco puntos.",
)  # fmt: skip


def sentences() -> list[str]:
    """Return about 200 varied texts: questions, commands, code, four languages, an empty text, two past the limit."""
    framed = [frame.format(topic) for frame in FRAMES for topic in TOPICS]
    return [*framed, *OTHERS, " ".join(framed[:20]), " ".join(framed)]


class Graph:
    """Collects the nodes and constants of the graph. Values are identified by their names."""

    def __init__(self, weights: Mapping[str, NDArray[np.float32]]) -> None:
        self.weights = weights
        self.nodes: list[Any] = []
        self.constants: list[Any] = []

    def constant(self, name: str, array: Any) -> str:
        self.constants.append(numpy_helper.from_array(np.ascontiguousarray(array), name))
        return name

    def weight(self, name: str) -> str:
        return self.constant(name, self.weights[name])

    def add(self, operator: str, *inputs: str, output: str = "", domain: str = "", **attributes: Any) -> str:
        """Add a node and return the name of its only output."""
        output = output or f"{operator}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, inputs, [output], domain=domain, **attributes))
        return output

    def quantised(self, value: str, name: str, rows: int) -> tuple[tuple[str, str, str], NDArray[np.float32]]:
        """Quantise the input of the product `name`.

        Return its uint8 value, scale and zero point, and the factors of the `rows` of the product.
        """
        number, product = name.removeprefix("encoder.layer.").split(".", 1)
        layer, place = int(number), PRODUCTS.index(product)
        (low, high), far = RANGES[layer][place], FAR[layer][place]
        factors = np.array([far.get(channel, 1) for channel in range(rows)], np.float32)
        if far:
            value = self.add("Mul", value, self.constant(f"{name}.read.nearer", 1 / factors))
        scale = np.array((high - low) / 255, np.float32)
        zero = np.array(np.rint(-low / scale), np.uint8)
        constants = self.constant(f"{name}.read.scale", scale), self.constant(f"{name}.read.zero", zero)
        return (self.add("QuantizeLinear", value, *constants), *constants), factors

    def normed(self, value: str, name: str) -> str:
        weights = self.weight(f"{name}.weight"), self.weight(f"{name}.bias")
        return self.add("LayerNormalization", value, *weights, axis=-1, epsilon=EPSILON)

    def dense(self, value: str, name: str) -> str:
        rows, bias = self.weights[f"{name}.weight"].T, self.weight(f"{name}.bias")
        (read, its_scale, its_zero), factors = self.quantised(value, name, len(rows))
        columns, scale = per_column(rows * factors[:, np.newaxis])
        weights = self.constant(f"{name}.int8", columns), self.constant(f"{name}.scale", scale)
        inputs = (read, weights[0], its_scale, weights[1], its_zero, "", bias)
        return self.add("MatMulIntegerToFloat", *inputs, domain=FUSED)

    def attention(self, value: str, mask: str, name: str) -> str:
        """Add one node for all heads of query, key and value."""
        parts = [f"{name}.{part}" for part in ("query", "key", "value")]
        rows = np.concatenate([self.weights[f"{part}.weight"].T for part in parts], axis=1)
        (read, its_scale, its_zero), factors = self.quantised(value, name, len(rows))
        columns, scale = per_column(rows * factors[:, np.newaxis])
        bias = np.concatenate([self.weights[f"{part}.bias"] for part in parts])
        weights = self.constant(f"{name}.int8", columns), self.constant(f"{name}.bias", bias)
        inputs = (read, *weights, its_scale, self.constant(f"{name}.scale", scale), mask, its_zero)
        zero = self.constant(f"{name}.zero", np.zeros(len(scale), np.int8))
        return self.add("QAttention", *inputs, zero, domain=FUSED, num_heads=HEADS)

    def layer(self, value: str, mask: str, name: str) -> str:
        attended = self.dense(self.attention(value, mask, f"{name}.attention.self"), f"{name}.attention.output.dense")
        # Two nodes for sum and norm: onnxruntime's SkipLayerNormalization takes four times as long as both.
        value = self.normed(self.add("Add", attended, value), f"{name}.attention.output.LayerNorm")
        inner = self.add("Gelu", self.dense(value, f"{name}.intermediate.dense"), domain=FUSED)
        outer = self.dense(inner, f"{name}.output.dense")
        return self.normed(self.add("Add", outer, value), f"{name}.output.LayerNorm")


def per_column(weights: NDArray[np.float32]) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
    """Return weights of shape (in, out) as int8, with the scale of each column. Zero stays zero."""
    scale = (2 * np.abs(weights).max(0) / np.float32(254)).astype(np.float32)
    return np.clip(np.rint(weights / scale), -127, 127).astype(np.int8), scale


def as_bytes(table: NDArray[np.float32]) -> tuple[NDArray[np.uint8], np.float32, np.uint8]:
    """Return a table as uint8, with one scale and one zero point."""
    low, high = min(table.min(), np.float32(0)), max(table.max(), np.float32(0))
    scale = np.float32((high - low) / np.float32(255))
    zero = np.uint8(np.rint(-low / scale))
    return np.clip(np.rint(table / scale) + zero, 0, 255).astype(np.uint8), scale, zero


def add_embedding_layer(graph: Graph) -> str:
    """Add the embedding layer and return its output.

    Words come from a uint8 table, which the cross-encoder reads too (word_table.py). Positions are added as floats,
    together with the token type that all texts have.
    """
    table = graph.weights["embeddings.word_embeddings.weight"]
    name = "transformer.embeddings.word_embeddings.weight"
    rows, scale, zero = as_bytes(table)
    found = graph.add("Gather", graph.constant(f"{name}_quantized", rows), "input_ids")
    numbers = f"{name}_scale", f"{name}_zero_point"
    for number, kind, value in zip(numbers, (TensorProto.FLOAT, TensorProto.UINT8), (scale, zero), strict=True):
        graph.constants.append(helper.make_tensor(number, kind, [], [value]))  # typed fields, not raw bytes
    words = graph.add("DequantizeLinear", found, *numbers)
    places = sum(_rounded(graph.weights[f"embeddings.{name}.weight"])[:rows]
                 for name, rows in (("position_embeddings", None), ("token_type_embeddings", 1)))  # fmt: skip
    length = graph.add("Shape", "input_ids", start=1, end=2)
    begun = graph.constant("begin", np.zeros(1, np.int64))
    added = graph.add("Add", words, graph.add("Slice", graph.constant("places", places), begun, length))
    return graph.normed(added, "embeddings.LayerNorm")


def _rounded(table: NDArray[np.float32]) -> NDArray[np.float32]:
    """Round a table to uint8 precision, because the thresholds were measured with it."""
    rows, scale, zero = as_bytes(table)
    return (rows.astype(np.float32) - np.float32(zero)) * scale


def write_graph(source: Path, target: Path) -> None:
    graph = Graph(load_file(source / "model.safetensors"))
    mask = graph.add("Cast", "attention_mask", to=TensorProto.INT32)
    value = add_embedding_layer(graph)
    for number in range(LAYERS):
        value = graph.layer(value, mask, f"encoder.layer.{number}")
    # Mean pooling without padding. The result is normalised, so the sum is enough.
    second = graph.constant("second", np.ones(1, np.int64))
    weights = graph.add("Unsqueeze", graph.add("Cast", "attention_mask", to=TensorProto.FLOAT), second)
    pooled = graph.add("Squeeze", graph.add("MatMul", weights, value), second)
    graph.add("LpNormalization", pooled, output="sentence_embedding", axis=-1, p=2)
    graph.add("LpNormalization", value, output="token_embeddings", axis=-1, p=2)
    info = helper.make_tensor_value_info
    outputs = {"sentence_embedding": ["batch", WIDTH], "token_embeddings": ["batch", "length", WIDTH]}
    made = helper.make_graph(
        graph.nodes,
        "all-MiniLM-L6-v2",
        [info(name, TensorProto.INT64, ["batch", "length"]) for name in ("input_ids", "attention_mask")],
        [info(name, TensorProto.FLOAT, shape) for name, shape in outputs.items()],
        graph.constants,
    )
    opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid(FUSED, 1)]
    onnx.save(helper.make_model(made, opset_imports=opsets, ir_version=8), target)


def encode(model: Path, tokenizer_file: Path, texts: list[str]) -> NDArray[np.float32]:
    """Return sentence embeddings (n, 384), with one forward pass per text, as for a single request."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 2
    session = onnxruntime.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])
    tokenizer = tokenizers.Tokenizer.from_file(str(tokenizer_file))
    tokenizer.no_padding()
    tokenizer.enable_truncation(MAX_TOKENS)
    rows = []
    for text in texts:
        ids = np.array([tokenizer.encode(text).ids], np.int64)
        feed = {"input_ids": ids, "attention_mask": np.ones_like(ids)}
        rows.append(session.run(["sentence_embedding"], feed)[0][0])
    return np.stack(rows)


def reference() -> NDArray[np.float32]:
    """Return the fp32 vectors of sentence-transformers with the published weights for `sentences()`, (n, 384).

    Raises ValueError if the file has those of other texts.
    """
    with np.load(REFERENCE_FILE) as file:
        if str(file["texts_sha256"]) != texts_digest():
            raise ValueError(f"{REFERENCE_FILE.name} has the vectors of other texts")
        return np.asarray(file["vectors"], np.float32)


def texts_digest() -> str:
    return hashlib.sha256(json.dumps(sentences()).encode()).hexdigest()


def verify(source: Path, model: Path) -> dict[str, float | int]:
    """Return the cosine agreement of the graph with the reference. Raises ValueError below `MIN_MEAN_COSINE`, and as
    `reference`.
    """
    texts = sentences()
    found = (encode(model, source / "tokenizer.json", texts) * reference()).sum(1)
    if found.mean() < MIN_MEAN_COSINE:
        said = f"mean cosine {found.mean():.4f}, expected at least {MIN_MEAN_COSINE}"
        raise ValueError(f"the int8 graph deviates from the reference ({said})")
    return {
        "texts": len(texts),
        "mean": round(float(found.mean()), 5),
        "p05": round(float(np.quantile(found, 0.05)), 5),
        "min": round(float(found.min()), 5),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path, help="directory of the published model")
    parser.add_argument("target", type=Path, help="directory to write to")
    arguments = parser.parse_args()
    arguments.target.mkdir(parents=True, exist_ok=True)
    write_graph(arguments.source, arguments.target / "model.onnx")
    try:
        agreement = verify(arguments.source, arguments.target / "model.onnx")
    except ValueError as error:
        print(error, file=sys.stderr)  # noqa: T201 - the caller of this script reads this line
        return 1
    shutil.copyfile(arguments.source / "tokenizer.json", arguments.target / "tokenizer.json")
    facts = {
        "quantisation": "static int8, weights per channel",
        "opset": OPSET,
        "cosine_agreement": agreement,
        "built_with": {
            "python": platform.python_version(),
            "machine": platform.machine(),
            **{m.__name__: m.__version__ for m in (np, onnx, onnxruntime)},
        },
    }
    (arguments.target / "export.json").write_text(json.dumps(facts, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
