"""The HTTP and gRPC ports: turns bytes into requests and answers into bytes, with limits and draining."""
