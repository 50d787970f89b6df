"""The protocol of TensorFlow Serving."""
