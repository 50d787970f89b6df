"""Makes the small model for the tests of `adapter: onnx`: trains it here, and exports it by Hugging Face Optimum.

    python -m venv .venv-edge && .venv-edge/bin/pip install -r training/requirements-edge.txt
    .venv-edge/bin/python -m training.edge_models --out tests/fixtures/onnx

The model is a classifier of one layer for training/edge_kinds.jsonl. Texts and weights belong to this project. It takes
a minute on two cores. Weights are stored as half floats, and computed with as floats. That halves the size, and gives
the same answers on every machine, which int8 kernels do not guarantee.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import onnx
import torch
from onnx import TensorProto, helper, numpy_helper
from optimum.exporters.onnx import main_export
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import BertConfig, BertForSequenceClassification, PreTrainedTokenizerFast

HERE = Path(__file__).parent
VOCABULARY, CONTEXT = 512, 64
CLS, PAD = "<|cls|>", "<|pad|>"
SMALL = 64  # numbers: below that an initialiser stays as it is


def number_of(token: str, tokenizer: Tokenizer) -> int:
    number = tokenizer.token_to_id(token)
    assert number is not None  # one of those that it was made with
    return int(number)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    out: Path = parser.parse_args().out
    torch.manual_seed(7)
    torch.set_num_threads(2)
    classifier(out)


def tokenizer_of(texts: Iterable[str]) -> Tokenizer:
    """Return a byte-level tokenizer, which can read any text."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY, special_tokens=[CLS, PAD], initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        min_frequency=3, show_progress=False,
    )  # fmt: skip
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def classifier(out: Path) -> None:
    lines = list(read("edge_kinds.jsonl"))
    tokenizer = tokenizer_of(line["text"] for line in lines)
    cls, pad = number_of(CLS, tokenizer), number_of(PAD, tokenizer)
    tokenizer.post_processor = processors.TemplateProcessing(single=f"{CLS} $A", special_tokens=[(CLS, cls)])
    labels = sorted({line["kind"] for line in lines})
    network = BertForSequenceClassification(
        BertConfig(
            vocab_size=tokenizer.get_vocab_size(), hidden_size=32, num_hidden_layers=1, num_attention_heads=2,
            intermediate_size=64, max_position_embeddings=CONTEXT, pad_token_id=pad, hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0, id2label=dict(enumerate(labels)),
            label2id={label: i for i, label in enumerate(labels)},
        )
    )  # fmt: skip
    ids: list[list[int]] = [tokenizer.encode(line["text"]).ids for line in lines]
    longest = max(map(len, ids))
    x = torch.tensor([row + [pad] * (longest - len(row)) for row in ids])
    y = torch.tensor([labels.index(line["kind"]) for line in lines])
    optimizer = torch.optim.AdamW(network.parameters(), lr=2e-3)
    for _ in range(120):
        loss = network(input_ids=x, attention_mask=(x != pad).long(), labels=y).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"classify: {sum(p.numel() for p in network.parameters())} weights, loss {loss.item():.4f}")  # noqa: T201
    wrapped = PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token=PAD, model_max_length=CONTEXT)
    with tempfile.TemporaryDirectory() as scratch:
        network.eval().save_pretrained(scratch)
        wrapped.save_pretrained(scratch)
        main_export(scratch, out / "classify", task="text-classification", do_validation=False)
    tidy(out / "classify")


def read(name: str) -> Iterator[dict[str, str]]:
    for line in (HERE / name).read_text(encoding="utf-8").splitlines():
        yield json.loads(line)


def tidy(folder: Path) -> None:
    """Store the weights as half floats, and remove everything that the gateway does not read."""
    kept = {"model.onnx", "tokenizer.json", "config.json", "tokenizer_config.json"}
    model = onnx.load(folder / "model.onnx")
    casts = []
    for weights in model.graph.initializer:
        if weights.data_type == TensorProto.FLOAT and int(np.prod(weights.dims)) >= SMALL:
            name, half = weights.name, f"{weights.name}.half"
            weights.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(weights).astype(np.float16), half))
            casts.append(helper.make_node("Cast", [half], [name], to=TensorProto.FLOAT))
    for cast in reversed(casts):
        model.graph.node.insert(0, cast)
    onnx.checker.check_model(model)
    for file in folder.iterdir():
        if file.name not in kept:
            file.unlink()
    onnx.save(model, folder / "model.onnx")
    print(f"{folder}: {sum(file.stat().st_size for file in folder.iterdir())} bytes")  # noqa: T201


if __name__ == "__main__":
    main()
