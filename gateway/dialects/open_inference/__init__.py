"""Messages and tensors of the Open Inference Protocol, for all protocols and backends of tensors."""
