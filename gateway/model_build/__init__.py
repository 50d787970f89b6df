"""Makes model files: the default embedding model, environments with torch, trainings, versions for Triton."""
