"""The demo's Triton models. `gateway.features.demo.build` copies these files into a model repository.

They run inside Triton's python backend. Its environment has numpy, onnxruntime and tokenizers, but not `gateway`, so
they import only each other, relatively. `light`, `large` and `embedder` become `model.py`.
"""
