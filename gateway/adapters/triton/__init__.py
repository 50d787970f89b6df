"""Models on a Triton Inference Server, over gRPC."""
