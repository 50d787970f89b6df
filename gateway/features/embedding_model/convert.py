"""Writes any sentence-transformers model as one int8 ONNX graph. This is a script, not a module of the gateway.

`nearhit model build` runs it inside the build environment, which has sentence-transformers; its vectors are the
reference. The script imports nothing of `gateway`.

    python convert.py SOURCE TARGET_DIR NAME [--prompt TEXT]

SOURCE is a folder or a name on the hub. The script writes `model.onnx`, `tokenizer.json` and `export.json` (the build
facts for the manifest). If the model cannot be read, or the graph deviates from it, the script exits with 1 and prints
one sentence.

The graph takes `input_ids` and `attention_mask`, int64 of shape (batch, length). It returns `sentence_embedding`,
float32 (batch, dimension), of unit length. Pooling, dense layers and normalising are part of it. Lower-casing is part
of the tokenizer. The prompt and the longest input are facts for the reader of the text.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import huggingface_hub
import numpy as np
import onnx
import onnxruntime
import sentence_transformers
import tokenizers
import torch
import transformers
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

OPSET = 17
FUSED = "com.microsoft"  # operators of onnxruntime outside the ONNX standard
# A product has 8-bit weights with one scale for each BLOCK of a column, and 8-bit inputs with one scale for each BLOCK
# of a token. So no text affects the vector of another one in its pass, and an outlier spoils only its block. Measured
# on all-mpnet-base-v2: mean cosine 0.9997; with one scale of a whole pass 0.91.
BLOCK, BITS, BYTE_INPUTS = 32, 8, 4
WORDS = 8192  # a table with more rows is one of words, and becomes int8 with a scale for each row
# A longer pass would hold the embedder's thread for a second and more.
MAX_TOKENS = 512
MIN_MEAN_COSINE, MIN_COSINE = 0.995, 0.98  # measured: 0.9995 and 0.9985, a shared part subtracted
# Vectors of some models share a large part: unrelated texts have a cosine of 0.8 with multilingual-e5-small. That part
# is subtracted if its squared length is above this, so that thresholds mean what they mean with the default model.
# Source: Mu and Viswanath, "All-but-the-Top", ICLR 2018. Below it, the vectors stay those of the published model.
MAX_SHARED = 0.3  # all-mpnet-base-v2 has 0.11
HUB_FILES = ("*.json", "*.txt", "*.safetensors", "*.model", "README.md")
HUB_TIMEOUT_S = 10
NEXT_PROMPT = "query"  # the prompt to use if the files name no default: both sides of a comparison are questions

TOPICS = (
    "a parental leave policy", "a lost credit card", "Kubernetes pod eviction", "photosynthesis in desert plants",
    "insulin dosage for children", "the French Revolution", "binary search trees", "refunds on cancelled flights",
)  # fmt: skip
FRAMES = (
    "What is {}?", "How do I deal with {} step by step?", "Write a two-sentence summary of {}.", "{}",
    "Is there any reason not to ask my manager about {} before Friday 17:30?", "hey can u help me w {} pls!",
)  # fmt: skip
OTHERS = (
    "?", "2021", "ok", "def add(a, b):\n    return a + b", "\N{GRINNING FACE} great, thanks!", "km to miles",
    "Turn the living room lights off.", "Turn the living room lights on.", '{"user": 17, "active": false}',
    "Wie kann ich mein Passwort zurücksetzen?", "Wann muss ich die Umsatzsteuer abführen?", "Was kostet ein Visum?",
    "Der Zug nach Zürich fällt heute aus.", "Welche Unterlagen brauche ich für den Mietvertrag?",
    "Schreibe ein Gedicht über den Herbst.", "Wie hoch ist der Mont Blanc?", "Erkläre mir die Relativitätstheorie.",
    "如何重置我的密码？", "北京明天的天气怎么样？", "请用三句话总结这篇文章。", "机器学习和深度学习有什么区别？",
    "怎么办理护照？", "红烧肉怎么做？", "谁写了《红楼梦》？", "我的包裹什么时候到？",
    "¿Cómo puedo restablecer mi contraseña?", "¿Cuál es la capital de Australia?", "Resume este contrato.",
    "El pedido llegó roto y quiero una devolución.", "¿Cuánto cuesta un billete a Sevilla?", "Escribe un poema.",
    "¿Quién pintó el Guernica?", "¿Qué síntomas tiene la gripe?", "Comment changer mon adresse de livraison ?",
    "Quels sont les horaires de la bibliothèque ?", "Explique-moi la photosynthèse.", "Come si prepara il risotto?",
    "Dove posso rinnovare la patente?", "Como faço para cancelar a assinatura?", "Qual é a população do Brasil?",
    "Как восстановить пароль?", "Какая погода будет завтра в Москве?", "パスワードを再設定するには？",
    "東京の人口は何人ですか？", "비밀번호를 어떻게 바꾸나요?", "كيف أغير كلمة المرور؟", "मौसम कैसा रहेगा?",
    "Hoe zeg ik mijn abonnement op?", "Jak zmienić hasło do konta?", "Şifremi nasıl değiştirebilirim?",
)  # fmt: skip


def samples() -> list[str]:
    """Return about 100 varied texts: questions, commands, code, many languages, one text beyond most limits."""
    framed = [frame.format(topic) for frame in FRAMES for topic in TOPICS]
    return [*framed, *OTHERS, " ".join(framed * 2)]


def folder_of(source: str) -> Path:
    """Return the folder of the model, downloaded from the hub if `source` is not one. Raises ValueError."""
    if not Path(source).is_dir():
        os.environ.setdefault("HF_HUB_ETAG_TIMEOUT", str(HUB_TIMEOUT_S))
        try:
            return Path(huggingface_hub.snapshot_download(source, allow_patterns=list(HUB_FILES)))
        except Exception as error:  # the hub's errors and those of its HTTP client have no common base class
            raise ValueError(f"{source} cannot be had from the hub ({type(error).__name__})") from None
    return Path(source)


def load(folder: Path) -> Any:
    """Return the float model. Raises ValueError if it is no such model, or lacks weights."""
    modules = folder / "modules.json"
    if not modules.is_file():
        raise ValueError(f"{folder} has no modules.json, expected the folder of a sentence-transformers model")
    kinds = [str(each.get("type", "")).rsplit(".", 1)[-1] for each in json.loads(modules.read_text("utf-8"))]
    if kinds[:1] != ["Transformer"]:
        raise ValueError(f"the first module of {folder} is {kinds[0] if kinds else 'missing'}, expected Transformer")

    def read(seed: int) -> Any:
        torch.manual_seed(seed)
        options = {"attn_implementation": "eager"}  # the other implementations cannot be traced
        return sentence_transformers.SentenceTransformer(
            str(folder), device="cpu", model_kwargs={**options, "torch_dtype": torch.float32}, local_files_only=True
        ).eval()

    try:
        model, again = read(1), read(2)
    except Exception as error:  # the library raises plain exceptions
        raise ValueError(f"{folder} cannot be read: {type(error).__name__}: {error}"[:280]) from None
    if not model.tokenizer.is_fast:
        raise ValueError(f"the tokenizer of {folder} has no fast form, expected one that tokenizer.json can hold")
    # A weight that the files lack is drawn at random.
    one, two = (np.asarray(each.encode(["How do I reset my password?"])) for each in (model, again))
    if not np.array_equal(one, two):
        raise ValueError(f"{folder} lacks some of the weights that its modules need")
    return model


def prompt_of(model: Any, given: str | None) -> str:
    """Return the text in front of every question: the one given, the default of the files, or their query prompt."""
    if given is not None:
        return given
    prompts: dict[str, str] = model.prompts or {}
    names = (model.default_prompt_name, NEXT_PROMPT)
    return next((prompts[name] for name in names if name and prompts.get(name)), "")


class SentenceGraph(torch.nn.Module):  # type: ignore[misc]
    """The modules of the model, from token ids to a vector of unit length without the part that all vectors share."""

    def __init__(self, model: Any, prompt: str, shared: NDArray[np.float32] | None) -> None:
        super().__init__()
        self.parts = torch.nn.ModuleList(model)
        self.prompt_length = model[0]._get_prompt_length(prompt) if prompt else None
        self.shared = None if shared is None else torch.nn.Parameter(torch.from_numpy(shared), requires_grad=False)

    def forward(self, input_ids: Any, attention_mask: Any) -> Any:
        features: dict[str, Any] = {"input_ids": input_ids, "attention_mask": attention_mask}
        if self.prompt_length:
            features["prompt_length"] = self.prompt_length  # for a pooling that leaves the prompt out
        for part in self.parts:
            features = part(features)
        vectors = torch.nn.functional.normalize(features["sentence_embedding"].float(), dim=-1)
        return vectors if self.shared is None else torch.nn.functional.normalize(vectors - self.shared, dim=-1)


def trace(graph: SentenceGraph, target: Path) -> None:
    """Write the graph in float32. Raises ValueError if a module cannot be traced."""
    ids, mask = torch.tensor([[0, 5, 6, 7, 2], [0, 8, 9, 2, 1]]), torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 1, 0]])
    names = ["input_ids", "attention_mask"]
    axes = {name: {0: "batch", 1: "length"} for name in names} | {"sentence_embedding": {0: "batch"}}
    try:
        with torch.no_grad():
            torch.onnx.export(
                graph, (ids, mask), str(target), input_names=names, output_names=["sentence_embedding"],
                dynamic_axes=axes, opset_version=OPSET, dynamo=False,
            )  # fmt: skip
    except Exception as error:  # torch raises plain exceptions
        raise ValueError(f"the model cannot be traced: {type(error).__name__}: {error}"[:280]) from None


def blockwise(weights: NDArray[np.float32]) -> tuple[NDArray[np.uint8], NDArray[np.float32]]:
    """Return weights of shape (in, out) as uint8 (out, blocks, BLOCK), where 128 is zero, and scales (out, blocks)."""
    rows, columns = weights.shape
    blocks = -(-rows // BLOCK)
    padded = np.zeros((columns, blocks * BLOCK), np.float32)
    padded[:, :rows] = weights.T
    parts = padded.reshape(columns, blocks, BLOCK)
    scale = per_row_scale(parts)
    return (np.rint(parts / scale) + 128).astype(np.uint8), scale[..., 0]


def per_row_scale(rows: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the scales of the last axis, so that the largest magnitude becomes 127."""
    scale: NDArray[np.float32] = (np.abs(rows).max(-1, keepdims=True) / np.float32(127)).astype(np.float32)
    scale[scale == 0] = 1
    return scale


def quantise(source: Path, target: Path, dimension: int) -> None:
    """Write the float32 graph with 8-bit products and word tables."""
    model = onnx.load(source)
    graph = model.graph
    tensors = {each.name: each for each in graph.initializer}
    made: dict[str, onnx.TensorProto] = {}
    nodes = [new for node in graph.node for new in quantised(node, tensors, made)]
    read = {name for node in nodes for name in node.input}
    used = [each for each in graph.initializer if each.name in read]
    del graph.node[:], graph.initializer[:], graph.value_info[:], graph.output[:]
    graph.node.extend(nodes)
    graph.initializer.extend([*used, *made.values()])
    graph.output.append(helper.make_tensor_value_info("sentence_embedding", TensorProto.FLOAT, ["batch", dimension]))
    model.opset_import.append(helper.make_opsetid(FUSED, 1))
    onnx.save(model, target)


def quantised(node: Any, tensors: dict[str, Any], made: dict[str, Any]) -> Iterator[Any]:
    """Yield the nodes that replace `node`, or itself. New tensors are put into `made`, by name."""
    place = {"MatMul": 1, "Gather": 0}.get(node.op_type)
    tensor = None if place is None else tensors.get(node.input[place])
    if tensor is None or len(tensor.dims) != 2 or (place == 0 and tensor.dims[0] <= WORDS):
        yield node
        return
    name, output = tensor.name, node.output[0]
    weights = numpy_helper.to_array(tensor).astype(np.float32)
    if place == 1:
        if f"{name}_int8" not in made:
            for part, array in zip(("int8", "scale"), blockwise(weights), strict=True):
                made[f"{name}_{part}"] = numpy_helper.from_array(array, f"{name}_{part}")
        yield helper.make_node(
            "MatMulNBits", [node.input[0], f"{name}_int8", f"{name}_scale"], [output], node.name, domain=FUSED,
            K=weights.shape[0], N=weights.shape[1], bits=BITS, block_size=BLOCK, accuracy_level=BYTE_INPUTS,
        )  # fmt: skip
        return
    if f"{name}_int8" not in made:
        scale = per_row_scale(weights)
        made[f"{name}_int8"] = numpy_helper.from_array(np.rint(weights / scale).astype(np.int8), f"{name}_int8")
        made[f"{name}_scale"] = numpy_helper.from_array(scale, f"{name}_scale")
    yield helper.make_node("Gather", [f"{name}_int8", node.input[1]], [f"{output}_int8"])
    yield helper.make_node("Cast", [f"{output}_int8"], [f"{output}_float"], to=TensorProto.FLOAT)
    yield helper.make_node("Gather", [f"{name}_scale", node.input[1]], [f"{output}_scale"])
    yield helper.make_node("Mul", [f"{output}_float", f"{output}_scale"], [output])


def encode(target: Path, reads: dict[str, Any], texts: list[str]) -> NDArray[np.float32]:
    """Return the vectors of the graph, (n, dimension), with one pass per text. It reads texts as the gateway does."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 2
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(str(target / "model.onnx"), options, providers=["CPUExecutionProvider"])
    tokenizer = tokenizers.Tokenizer.from_file(str(target / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.enable_truncation(reads["max_tokens"])
    rows = []
    for text in texts:
        ids = np.array([tokenizer.encode(reads["prompt"] + text).ids], np.int64)
        feed = {"input_ids": ids, "attention_mask": np.ones_like(ids)}
        rows.append(session.run(["sentence_embedding"], feed)[0][0])
    return np.stack(rows)


def agreement(vectors: NDArray[np.float32], expected: NDArray[np.float32]) -> dict[str, float | int]:
    """Return the cosine agreement of two matrices of unit vectors. Raises ValueError below the bounds."""
    cosines = (vectors * expected).sum(1)
    mean, least = float(cosines.mean()), float(cosines.min())
    if not (mean >= MIN_MEAN_COSINE and least >= MIN_COSINE):
        agreement = f"mean cosine {mean:.4f}, least {least:.4f}, expected at least {MIN_MEAN_COSINE} and {MIN_COSINE}"
        raise ValueError(f"the int8 graph deviates from the float model ({agreement})")
    p05 = float(np.quantile(cosines, 0.05))
    return {"texts": len(cosines), "mean": round(mean, 5), "p05": round(p05, 5), "min": round(least, 5)}


def unit(vectors: NDArray[np.float32]) -> NDArray[np.float32]:
    scaled: NDArray[np.float32] = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    return scaled


def convert(source: str, target: Path, name: str, prompt: str | None) -> dict[str, Any]:
    """Write graph and tokenizer, and return the build facts. Raises ValueError."""
    model = load(folder_of(source))
    longest = model.max_seq_length
    tokens = min(int(longest), MAX_TOKENS) if longest else MAX_TOKENS
    model.max_seq_length = tokens
    chosen = prompt_of(model, prompt)
    reads = {"prompt": chosen, "max_tokens": tokens, "unknown": model.tokenizer.unk_token or ""}
    texts = samples()
    expected = unit(np.asarray(model.encode(texts, prompt=chosen, batch_size=8), np.float32))
    shared = expected.mean(0)
    share = float(shared @ shared)
    if share > MAX_SHARED:
        expected = unit(expected - shared)
    target.mkdir(parents=True, exist_ok=True)
    model.tokenizer.backend_tokenizer.save(str(target / "tokenizer.json"))
    floats = target / "float.onnx"
    trace(SentenceGraph(model, chosen, shared if share > MAX_SHARED else None).eval(), floats)
    quantise(floats, target / "model.onnx", expected.shape[1])
    floats.unlink()
    return {
        "model": name,
        "quantisation": f"blockwise int8, blocks of {BLOCK}",
        "reads": reads,
        "dimension": expected.shape[1],
        "shared_part": {"squared_length": round(share, 3), "subtracted": share > MAX_SHARED},
        "opset": OPSET,
        "cosine_agreement": agreement(encode(target, reads, texts), expected),
        "built_with": {
            "python": platform.python_version(),
            "machine": platform.machine(),
            **{m.__name__: m.__version__ for m in (torch, transformers, sentence_transformers, onnx, onnxruntime)},
        },
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", help="folder of a sentence-transformers model, or its name on the hub")
    parser.add_argument("target", type=Path, help="directory to write to")
    parser.add_argument("name", help="name of the model for the configuration")
    parser.add_argument("--prompt", help="text in front of every question; default: as its files say")
    given = parser.parse_args()
    warnings.filterwarnings("ignore")
    torch.set_num_threads(2)
    try:
        facts = convert(given.source, given.target, given.name, given.prompt)
    except ValueError as error:
        print(" ".join(str(error).split()), file=sys.stderr)  # noqa: T201 - the caller of this script reads this line
        return 1
    (given.target / "export.json").write_text(json.dumps(facts, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
