"""The backend `adapter: onnx`: a model in the process of the gateway."""
