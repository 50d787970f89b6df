"""Makes the small models that the tests of `adapter: onnx` run: trained here, exported by Hugging Face Optimum.

    python -m venv .venv-edge && .venv-edge/bin/pip install -r training/requirements-edge.txt
    .venv-edge/bin/python -m training.edge_models --out tests/fixtures/onnx

A decoder of two layers that has learnt training/edge_answers.jsonl by heart, exported with and without the inputs of a
key-value cache, and a classifier of one layer for training/edge_kinds.jsonl. Texts and weights are our own. Some
minutes on two cores. Weights are stored as half floats and computed with as floats: half the size, and the same answers
on every machine, which int8 kernels do not promise.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import onnx
import torch
from onnx import TensorProto, helper, numpy_helper
from optimum.exporters.onnx import main_export
from tokenizers import Tokenizer, processors
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    GenerationConfig,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
)

from gateway.tools.distillation.trainer.prompt_format import END, PAD, ROLES, TEMPLATE, tokenizer_of

HERE = Path(__file__).parent
VOCABULARY, CONTEXT, KIND_CONTEXT = 512, 192, 64
CLS = "<|cls|>"
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
    generator(out)
    classifier(out)


def generator(out: Path) -> None:
    lines = list(read("edge_answers.jsonl"))
    texts = [text for line in lines for text in (line["q"], line["a"])]
    tokenizer = tokenizer_of(texts, (*ROLES, END, PAD), VOCABULARY, 3)
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token=END, pad_token=PAD, model_max_length=CONTEXT, chat_template=TEMPLATE
    )
    network = learnt_by_heart(tokenizer, lines)
    exports = (("generate", "text-generation-with-past", False), ("generate-no-past", "text-generation", True))
    for name, task, in_json in exports:
        with tempfile.TemporaryDirectory() as scratch:
            network.save_pretrained(scratch)
            wrapped.save_pretrained(scratch)
            main_export(scratch, out / name, task=task, do_validation=False)
        tidy(out / name)
        if in_json:  # as older exports have it
            about = out / name / "tokenizer_config.json"
            settings = {**json.loads(about.read_text()), "chat_template": TEMPLATE}
            about.write_text(json.dumps(settings, indent=2) + "\n")
            (out / name / "chat_template.jinja").unlink()


def learnt_by_heart(tokenizer: Tokenizer, lines: Sequence[dict[str, str]]) -> LlamaForCausalLM:
    end, pad = number_of(END, tokenizer), number_of(PAD, tokenizer)
    network = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=tokenizer.get_vocab_size(), hidden_size=64, intermediate_size=128, num_hidden_layers=2,
            num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=CONTEXT, tie_word_embeddings=True,
            bos_token_id=None, eos_token_id=end, pad_token_id=pad,
        )
    )  # fmt: skip
    network.generation_config = GenerationConfig(eos_token_id=end, pad_token_id=pad)
    ids, targets = [], []
    for line in lines:
        asked = tokenizer.encode(f"<|user|>{line['q']}{END}<|assistant|>").ids
        said = tokenizer.encode(line["a"] + END).ids
        ids.append(asked + said)
        targets.append([-100] * len(asked) + said)
    longest = max(map(len, ids))
    x = torch.tensor([row + [pad] * (longest - len(row)) for row in ids])
    y = torch.tensor([row + [-100] * (longest - len(row)) for row in targets])
    mask = (x != pad).long()
    optimizer = torch.optim.AdamW(network.parameters(), lr=4e-3, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 4e-3, total_steps=700)
    for step in range(700):
        loss = network(input_ids=x, attention_mask=mask, labels=y).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        if step % 100 == 99:
            print(f"generate: step {step + 1}, loss {loss.item():.4f}", flush=True)  # noqa: T201
    print(f"generate: {sum(p.numel() for p in network.parameters())} weights, longest line {longest} tokens")  # noqa: T201
    return network.eval()


def classifier(out: Path) -> None:
    lines = list(read("edge_kinds.jsonl"))
    tokenizer = tokenizer_of([line["text"] for line in lines], (CLS, PAD), VOCABULARY, 3)
    cls, pad = number_of(CLS, tokenizer), number_of(PAD, tokenizer)
    tokenizer.post_processor = processors.TemplateProcessing(single=f"{CLS} $A", special_tokens=[(CLS, cls)])
    labels = sorted({line["kind"] for line in lines})
    network = BertForSequenceClassification(
        BertConfig(
            vocab_size=tokenizer.get_vocab_size(), hidden_size=32, num_hidden_layers=1, num_attention_heads=2,
            intermediate_size=64, max_position_embeddings=KIND_CONTEXT, pad_token_id=pad, hidden_dropout_prob=0.0,
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
    wrapped = PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token=PAD, model_max_length=KIND_CONTEXT)
    with tempfile.TemporaryDirectory() as scratch:
        network.eval().save_pretrained(scratch)
        wrapped.save_pretrained(scratch)
        main_export(scratch, out / "classify", task="text-classification", do_validation=False)
    tidy(out / "classify")


def read(name: str) -> Iterator[dict[str, str]]:
    for line in (HERE / name).read_text(encoding="utf-8").splitlines():
        yield json.loads(line)


def tidy(folder: Path) -> None:
    """Weights as half floats, and nothing that the gateway does not read."""
    settings = {"config.json", "generation_config.json", "tokenizer_config.json"}
    kept = {"model.onnx", "tokenizer.json", "chat_template.jinja", *settings}
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
