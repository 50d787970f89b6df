"""A trained model as an int8 ONNX graph of token ids and mask to logits."""

from __future__ import annotations

import logging
import tempfile
import warnings
from pathlib import Path

import torch
from onnxruntime.quantization import QuantType, quantize_dynamic

OPSET = 17


def export(model: torch.nn.Module, target: Path) -> int:
    """Writes `target`; returns the bytes of the graph before quantisation."""
    ids = torch.tensor([[1, 2, 3], [1, 2, 0]])
    mask = torch.tensor([[1, 1, 1], [1, 1, 0]])
    axes = {0: "batch", 1: "length"}
    with tempfile.TemporaryDirectory() as scratch:
        whole = Path(scratch) / "fp32.onnx"
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")  # of the tracer, about shapes: the held-out part checks the result
            torch.onnx.export(
                model.eval(),
                (ids, mask),
                str(whole),
                dynamo=False,
                opset_version=OPSET,
                input_names=["input_ids", "attention_mask"],
                output_names=["logits"],
                dynamic_axes={"input_ids": axes, "attention_mask": axes, "logits": {0: "batch"}},
            )
        logging.disable(logging.WARNING)  # it advises a step that is for convolutions
        quantize_dynamic(whole, target, per_channel=True, weight_type=QuantType.QInt8)
        return whole.stat().st_size
