"""Turns the published all-MiniLM-L6-v2 weights into one small int8 ONNX graph. A script, not a module of the gateway.

`nearhit model fetch` runs it inside the build environment, where torch and sentence-transformers are; the gateway
itself imports neither, so nothing of `gateway` is imported here.

    python export.py SOURCE_DIR TARGET_DIR

Writes `model.onnx`, `tokenizer.json` and `export.json` (what the manifest says about the build). Exit code 1, with one
sentence on stderr, when the quantised graph strays from the reference.

The graph takes `input_ids` and `attention_mask`, int64 of shape (batch, length), and gives `sentence_embedding`,
float32 (batch, 384), mean-pooled and unit length, and `token_embeddings`, float32 (batch, length, 384), each token
unit length: what a late-interaction verifier compares, without a second forward pass.
"""

from __future__ import annotations

import argparse
import json
import platform
import shutil
import sys
import tempfile
import warnings
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import sentence_transformers
import tokenizers
import torch
import transformers
from numpy.typing import NDArray
from onnxruntime.quantization import QuantType, quantize_dynamic

MAX_TOKENS = 256  # sentence_bert_config.json: what the model was trained to read
OPSET = 17
MIN_MEAN_COSINE = 0.99  # per-channel weights reach 0.994, per-tensor ones only 0.972

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


class Encoder(torch.nn.Module):  # type: ignore[misc, unused-ignore]
    """The transformer with mean pooling and both normalisations inside, so that the graph needs no code around it."""

    def __init__(self, transformer: torch.nn.Module) -> None:
        super().__init__()
        self.transformer = transformer

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        hidden = self.transformer(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        mask = attention_mask.unsqueeze(-1).to(hidden.dtype)
        pooled = (hidden * mask).sum(1) / mask.sum(1).clamp(min=1e-9)
        unit = torch.nn.functional.normalize
        return unit(pooled, dim=1), unit(hidden, dim=2)


def sentences() -> list[str]:
    """About 200 varied texts: questions, commands, code, four languages, an empty one and two past the limit."""
    framed = [frame.format(topic) for frame in FRAMES for topic in TOPICS]
    return [*framed, *OTHERS, " ".join(framed[:20]), " ".join(framed)]


def export_graph(source: Path, target: Path) -> None:
    """Writes the fp32 graph. Eager attention: the fused one has no operator in this opset."""
    transformer = transformers.AutoModel.from_pretrained(
        source, attn_implementation="eager", add_pooling_layer=False, dtype=torch.float32
    )
    tokenizer = transformers.AutoTokenizer.from_pretrained(source)
    sample = tokenizer(["a short text", "a text that is somewhat longer"], padding=True, return_tensors="pt")
    axes = {0: "batch", 1: "length"}
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")  # tracer warnings about shapes; `verify` checks the result instead
        torch.onnx.export(
            Encoder(transformer.eval()),
            (sample["input_ids"], sample["attention_mask"]),
            str(target),
            dynamo=False,
            opset_version=OPSET,
            input_names=["input_ids", "attention_mask"],
            output_names=["sentence_embedding", "token_embeddings"],
            dynamic_axes={
                "input_ids": axes,
                "attention_mask": axes,
                "sentence_embedding": {0: "batch"},
                "token_embeddings": axes,
            },
        )


def quantise(graph: Path, target: Path) -> None:
    quantize_dynamic(graph, target, per_channel=True, weight_type=QuantType.QInt8)


def encode(model: Path, tokenizer_file: Path, texts: list[str]) -> NDArray[np.float32]:
    """Sentence embeddings (n, 384), one text a forward pass, as a lone request would get them."""
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


def reference(source: Path, texts: list[str]) -> NDArray[np.float32]:
    """What sentence-transformers makes of the published weights in fp32, (n, 384)."""
    model = sentence_transformers.SentenceTransformer(str(source), device="cpu")
    return np.asarray(model.encode(texts, batch_size=16, normalize_embeddings=True), np.float32)


def verify(source: Path, fp32: Path, int8: Path) -> dict[str, float | int]:
    """Cosine agreement of both graphs with the reference. Raises ValueError below `MIN_MEAN_COSINE`."""
    texts = sentences()
    expected = reference(source, texts)
    exact = (encode(fp32, source / "tokenizer.json", texts) * expected).sum(1)
    small = (encode(int8, source / "tokenizer.json", texts) * expected).sum(1)
    if exact.min() < 0.9999:
        raise ValueError(f"the fp32 graph differs from the reference (cosine {exact.min():.5f}, expected 1)")
    if small.mean() < MIN_MEAN_COSINE:
        raise ValueError(
            f"the int8 graph strays from the reference (mean cosine {small.mean():.4f}, "
            f"expected at least {MIN_MEAN_COSINE})"
        )
    return {
        "texts": len(texts),
        "mean": round(float(small.mean()), 5),
        "p05": round(float(np.quantile(small, 0.05)), 5),
        "min": round(float(small.min()), 5),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path, help="directory of the published model")
    parser.add_argument("target", type=Path, help="directory to write to")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(2)
    arguments.target.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        graph = Path(scratch) / "fp32.onnx"
        export_graph(arguments.source, graph)
        quantise(graph, arguments.target / "model.onnx")
        try:
            agreement = verify(arguments.source, graph, arguments.target / "model.onnx")
        except ValueError as error:
            print(error, file=sys.stderr)  # noqa: T201 - a script: its caller reads this line
            return 1
    shutil.copyfile(arguments.source / "tokenizer.json", arguments.target / "tokenizer.json")
    facts = {
        "quantisation": "dynamic int8, weights per channel",
        "opset": OPSET,
        "cosine_agreement": agreement,
        "built_with": {
            "python": platform.python_version(),
            "machine": platform.machine(),
            **{m.__name__: m.__version__ for m in (torch, transformers, sentence_transformers, onnx, onnxruntime)},
        },
    }
    (arguments.target / "export.json").write_text(json.dumps(facts, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
