"""The vector index in Milvus."""
