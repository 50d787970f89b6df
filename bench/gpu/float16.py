"""Converts a float32 graph to float16, with float32 inputs and outputs. A script that needs onnx and onnxruntime.

python float16.py SOURCE.onnx TARGET.onnx
"""

from __future__ import annotations

import sys

import onnx
from onnxruntime.transformers.float16 import DEFAULT_OP_BLOCK_LIST, convert_float_to_float16

# Its scale must stay float32.
KEPT = [*DEFAULT_OP_BLOCK_LIST, "DequantizeLinear"]


def main() -> None:
    source, target = sys.argv[1:]
    onnx.save(convert_float_to_float16(onnx.load(source), keep_io_types=True, op_block_list=KEPT), target)


if __name__ == "__main__":
    main()
