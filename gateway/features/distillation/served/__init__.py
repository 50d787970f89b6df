"""The code that serves a distilled model. It is copied next to the weights and runs in Triton's python backend.

Triton's environment has numpy, onnxruntime and tokenizers, but not `gateway`, so all imports here are relative.
"""
