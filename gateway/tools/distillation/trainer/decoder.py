"""A decoder as the graph that Hugging Face Optimum makes for `text-generation-with-past`, which `adapter: onnx` reads.

Traced here: Optimum has no release for the transformers of the build environment.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import torch
from transformers import DynamicCache, GenerationConfig

from .errors import Unfit
from .export import convert, trace

MOST_BYTES = 2 * 10**9  # of one file in protobuf
STRAYS = 1e-3  # of logits, in units of their spread: what the fp32 graph may differ from the model


class Decoder(torch.nn.Module):  # type: ignore[misc, unused-ignore]
    """New token ids, the mask of all, the places of the new ones, keys and values -> logits, keys and values. The mask
    is spelt out, so that nothing in the graph hangs on the lengths that it was traced with."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor, position_ids: torch.Tensor, *past: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        kept = DynamicCache([(past[at], past[at + 1]) for at in range(0, len(past), 2)])
        before = torch.arange(attention_mask.shape[1])[None, None, None, :] <= position_ids[:, None, :, None]
        seen = before & (attention_mask[:, None, None, :] > 0)
        mask = torch.where(seen, 0.0, torch.finfo(torch.float32).min)
        said = self.model(
            input_ids=input_ids, attention_mask=mask, position_ids=position_ids, past_key_values=kept, use_cache=True
        )
        return said.logits, *_flat(said.past_key_values)


def try_export(model: Any, rows: Sequence[Sequence[int]]) -> None:
    """Before hours of training. `rows`: texts on which graph and model are compared. Raises `Unfit`."""
    kept = model.config._attn_implementation
    with tempfile.TemporaryDirectory() as scratch:
        _graph(model, rows, Path(scratch) / "fp32.onnx")
    model.set_attn_implementation(kept)


def exported(model: Any, tokenizer: Any, rows: Sequence[Sequence[int]], target: Path, precision: str) -> int:
    """Writes the folder `target`; returns the bytes of the graph as fp32. `rows`: as of `try_export`. Raises
    `Unfit`."""
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir()
    with tempfile.TemporaryDirectory() as scratch:
        whole = Path(scratch) / "fp32.onnx"
        _graph(model, rows, whole)
        convert(whole, target / "model.onnx", precision)
        size = whole.stat().st_size
    model.config.save_pretrained(target)
    GenerationConfig(eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id).save_pretrained(target)
    tokenizer.save_pretrained(target)
    return size


def _graph(model: Any, rows: Sequence[Sequence[int]], whole: Path) -> None:
    """The model's own attention is then the eager one. Raises `Unfit`."""
    weights = sum(each.numel() for each in model.parameters())
    if 4 * weights > MOST_BYTES:
        raise Unfit(f"the student has {weights} weights, expected {MOST_BYTES // 4} at most")
    model.eval()
    model.set_attn_implementation("eager")  # the fused one has no operator in the opset of the export
    try:
        _traced(model, whole)
    except Exception as error:  # whatever an architecture and the tracer think of each other
        raise Unfit(f"{type(model).__name__} cannot be exported as a decoder: {str(error)[:300]}") from None
    _check(model, whole, rows)


def _traced(model: Any, whole: Path) -> None:
    ids = torch.tensor([[1, 2, 3], [3, 2, 1]])
    with torch.no_grad():
        past = _flat(model(input_ids=torch.tensor([[4, 5], [5, 4]]), use_cache=True).past_key_values)
    names = [f"past_key_values.{at // 2}.{('key', 'value')[at % 2]}" for at in range(len(past))]
    presents = [name.replace("past_key_values", "present") for name in names]
    axes = {
        "input_ids": {0: "batch", 1: "new"},
        "attention_mask": {0: "batch", 1: "all"},
        "position_ids": {0: "batch", 1: "new"},
        "logits": {0: "batch", 1: "new"},
        **{name: {0: "batch", 2: "past"} for name in names},
        **{name: {0: "batch", 2: "all"} for name in presents},
    }
    given = (ids, torch.ones(2, 5, dtype=torch.long), torch.arange(2, 5).expand(2, -1), *past)
    inputs = ("input_ids", "attention_mask", "position_ids", *names)
    trace(Decoder(model), given, whole, inputs, ("logits", *presents), axes)


def _check(model: Any, graph: Path, rows: Sequence[Sequence[int]]) -> None:
    """In two passes, the second with keys and values of the first. Raises `Unfit`."""
    session = onnxruntime.InferenceSession(str(graph), providers=["CPUExecutionProvider"])
    past = [each for each in session.get_inputs() if each.name.startswith("past_key_values.")]
    for row in rows:
        with torch.no_grad():
            wanted = model(input_ids=torch.tensor([row]), use_cache=False).logits[0].numpy()
        kept = [np.zeros((1, each.shape[1], 0, each.shape[3]), np.float32) for each in past]
        found, half = [], len(row) // 2
        for first, last in ((0, half), (half, len(row))):
            feed = {
                "input_ids": np.array([row[first:last]]),
                "attention_mask": np.ones((1, last), np.int64),
                "position_ids": np.arange(first, last)[None],
                **{each.name: value for each, value in zip(past, kept, strict=True)},
            }
            logits, *kept = session.run(None, feed)
            found.append(logits[0])
        if np.abs(np.concatenate(found) - wanted).max() > STRAYS * max(1.0, float(wanted.std())):
            raise Unfit(
                f"the graph of {type(model).__name__} does not say what the model says, expected one like Llama"
            )


def _flat(kept: Any) -> list[torch.Tensor]:
    return [each for layer in kept.layers for each in (layer.keys, layer.values)]
