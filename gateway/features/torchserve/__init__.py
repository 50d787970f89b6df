"""The protocol of TorchServe."""
