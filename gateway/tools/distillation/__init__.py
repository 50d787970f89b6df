"""`nearhit distill`: a small model made from what a large one answered, a classifier as an entry of a Triton
repository.

Torch is needed for training alone: `trainer/` runs in the build environment and imports nothing else of ours, `served/`
in Triton's python backend, the rest in the gateway's environment.
"""
