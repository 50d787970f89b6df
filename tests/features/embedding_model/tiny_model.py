"""Makes a small sentence-transformers model with random weights, in the build environment.

    python tiny_model.py FOLDER TEXTS.json

FOLDER/tiny has a prompt that its pooling leaves out, a longest input, lower-casing and a dense layer. FOLDER/tiny.json
has its vectors for the texts, made by sentence-transformers. FOLDER/lacking.txt has the error of convert.py for the
same model without the weights of its dense layer: to import the libraries again takes ten seconds of CPU time.
"""

from __future__ import annotations

import json
import runpy
import shutil
import sys
from pathlib import Path

import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Dense, Normalize, Pooling, Transformer
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

NAME, WIDTH, DIMENSION, MAX_TOKENS, PROMPT = "tiny", 64, 48, 48, "ask: "


CONVERT = Path(__file__).parents[3] / "gateway" / "features" / "embedding_model" / "convert.py"


def tokenizer() -> PreTrainedTokenizerFast:
    signs = "abcdefghijklmnopqrstuvwxyz0123456789?.,:;'(){}=+-_*/\"<>"
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *signs, *(f"##{sign}" for sign in signs)]
    made = Tokenizer(models.WordPiece({piece: at for at, piece in enumerate(pieces)}, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    special = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    return PreTrainedTokenizerFast(tokenizer_object=made, **special)


def make(folder: Path) -> None:
    torch.manual_seed(1)
    words, base = tokenizer(), folder / "base"
    config = BertConfig(
        vocab_size=len(words), hidden_size=WIDTH, num_hidden_layers=2, num_attention_heads=4, intermediate_size=128,
        max_position_embeddings=64, initializer_range=0.3,
    )  # fmt: skip
    BertModel(config).save_pretrained(base)
    words.save_pretrained(base)
    reader = Transformer(str(base), max_seq_length=MAX_TOKENS, do_lower_case=True)
    pooling = Pooling(WIDTH, pooling_mode="mean_sqrt_len_tokens", include_prompt=False)
    dense = Dense(WIDTH, DIMENSION, activation_function=torch.nn.Identity())
    parts = [reader, pooling, dense]
    # Vectors of random weights share a large part, which the bias takes away. So nothing is left for
    # convert.py to subtract, and the converted model keeps its vectors.
    vectors = SentenceTransformer(modules=parts, device="cpu").encode(
        runpy.run_path(str(CONVERT))["samples"](), prompt=PROMPT
    )
    dense.linear.bias.data -= torch.from_numpy(vectors.mean(0))
    model = SentenceTransformer(modules=[*parts, Normalize()], prompts={"query": PROMPT}, device="cpu")
    model.save(str(folder / NAME))


def lacking(folder: Path) -> str:
    copy = Path(shutil.copytree(folder / NAME, folder / "lacking" / NAME))
    next(copy.glob("*_Dense/model.safetensors")).unlink()
    try:
        runpy.run_path(str(CONVERT))["load"](copy)
    except ValueError as error:
        return str(error)
    return ""


def main() -> None:
    folder, texts = Path(sys.argv[1]), json.loads(Path(sys.argv[2]).read_text("utf-8"))
    make(folder)
    vectors = SentenceTransformer(str(folder / NAME), device="cpu").encode(texts, prompt=PROMPT, batch_size=1)
    (folder / f"{NAME}.json").write_text(json.dumps(vectors.tolist()))
    (folder / "lacking.txt").write_text(lacking(folder))


if __name__ == "__main__":
    main()
