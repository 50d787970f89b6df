"""Makes a small classifier from the answers of a large model, as an entry of a Triton repository (`nearhit distill`).

Only the training needs torch, so the package has three parts. `trainer/` runs in the build environment and imports
nothing else of `gateway`. `served/` runs in Triton's python backend. The rest runs in the gateway's environment.
"""
