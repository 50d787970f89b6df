"""Exports a trained model as an ONNX graph in the requested precision."""

from __future__ import annotations

import logging
import shutil
import tempfile
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path

import onnx
import torch
from onnxruntime.quantization import QuantType, quantize_dynamic
from onnxruntime.transformers.float16 import convert_float_to_float16

OPSET = 17
NAMES = ("input_ids", "attention_mask")


def export(model: torch.nn.Module, target: Path, precision: str) -> int:
    """Write the graph from token ids and mask to logits to `target`. Return the size of its fp32 form in bytes."""
    ids = torch.tensor([[1, 2, 3], [1, 2, 0]])
    mask = torch.tensor([[1, 1, 1], [1, 1, 0]])
    axes = {0: "batch", 1: "length"}
    named = {"input_ids": axes, "attention_mask": axes, "logits": {0: "batch"}}
    with tempfile.TemporaryDirectory() as scratch:
        whole = Path(scratch) / "fp32.onnx"
        trace(model, (ids, mask), whole, NAMES, ("logits",), named)
        convert(whole, target, precision)
        return whole.stat().st_size


def trace(
    model: torch.nn.Module,
    given: tuple[torch.Tensor, ...],
    target: Path,
    inputs: Sequence[str],
    outputs: Sequence[str],
    axes: Mapping[str, Mapping[int, str]],
) -> None:
    """Write the fp32 graph. `axes` has the axes of any length, per input or output."""
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")  # the tracer warns about shapes; the held-out rows check the result
        torch.onnx.export(
            model.eval(),
            given,
            str(target),
            dynamo=False,
            opset_version=OPSET,
            input_names=list(inputs),
            output_names=list(outputs),
            dynamic_axes=axes,
        )


def convert(whole: Path, target: Path, precision: str) -> None:
    """Convert the fp32 graph to `precision`.

    `int8` means weights of 7 bits per channel, and activations quantised at run time. `fp16` covers all except inputs
    and outputs. Processors without VNNI add two 8-bit products in 16 bits and saturate; 7-bit weights avoid that
    (https://onnxruntime.ai/docs/performance/model-optimizations/quantization.html#when-and-why-do-i-need-to-try-u8u8).
    """
    if precision == "fp32":
        shutil.copyfile(whole, target)
    elif precision == "fp16":
        onnx.save(convert_float_to_float16(onnx.load(whole), keep_io_types=True), target)
    else:
        logging.disable(logging.WARNING)  # it recommends a step that only helps convolutions
        quantize_dynamic(whole, target, per_channel=True, reduce_range=True, weight_type=QuantType.QInt8)
        logging.disable(logging.NOTSET)
