"""What a distilled model is served by: copied beside its weights, run by Triton's python backend.

Triton's environment has numpy, onnxruntime and tokenizers, and nothing of ours: relative imports alone.
"""
