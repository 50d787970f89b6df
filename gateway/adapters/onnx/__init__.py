"""Models in this process, on onnxruntime."""
