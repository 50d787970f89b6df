"""Copies of large partitions of the index on a GPU (`index.device`)."""
