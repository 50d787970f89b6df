"""The gRPC port, which speaks version 2 of KServe's protocol and uses the same pipeline as the HTTP port."""
