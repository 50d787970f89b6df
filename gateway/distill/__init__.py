"""`nearhit distill`: a small text classifier made from what a large model answered, as an entry of a Triton repository.

Torch is needed for training alone: `trainer/` runs in the build environment and imports nothing else of ours, `served/`
in Triton's python backend, the rest in the gateway's environment.
"""
