"""The demo's Triton models. `gateway.tools.demo.build` copies these files into a model repository.

They run inside Triton's python backend, whose environment has numpy, onnxruntime and tokenizers but no `gateway`:
they import each other relatively and nothing else of ours. `light`, `large` and `embedder` become `model.py`.
"""
