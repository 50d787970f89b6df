"""The vector index in process, on FAISS."""
