"""Text encoders that need no server, and the batching around them."""
