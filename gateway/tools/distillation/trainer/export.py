"""A trained model as an ONNX graph, in the precision that was asked for."""

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
    """Token ids and mask to logits. Writes `target`; returns the bytes of the graph as `fp32`."""
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
    """The fp32 graph. `axes`: those that may be of any length, by input or output."""
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")  # of the tracer, about shapes: the held-out part checks the result
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
    """`int8`: weights of 7 bits per channel, activations quantised at run time. `fp16`: all but inputs and outputs.

    Processors without VNNI add two products of 8 bits in 16 bits and saturate; weights of 7 bits leave room
    (https://onnxruntime.ai/docs/performance/model-optimizations/quantization.html#when-and-why-do-i-need-to-try-u8u8).
    """
    if precision == "fp32":
        shutil.copyfile(whole, target)
    elif precision == "fp16":
        onnx.save(convert_float_to_float16(onnx.load(whole), keep_io_types=True), target)
    else:
        logging.disable(logging.WARNING)  # it advises a step that is for convolutions
        quantize_dynamic(whole, target, per_channel=True, reduce_range=True, weight_type=QuantType.QInt8)
        logging.disable(logging.NOTSET)
