"""The gRPC port: KServe's version 2, which hands each call to the same pipeline as the HTTP port."""
