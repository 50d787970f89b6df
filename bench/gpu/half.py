"""Converts a float32 graph to float16, with float32 inputs and outputs. This is a script: it needs onnx and onnxruntime.

    python half.py SOURCE.onnx TARGET.onnx
"""

from __future__ import annotations

import sys

import onnx
from onnxruntime.transformers.float16 import convert_float_to_float16


def main() -> None:
    source, target = sys.argv[1:]
    onnx.save(convert_float_to_float16(onnx.load(source), keep_io_types=True), target)


if __name__ == "__main__":
    main()
