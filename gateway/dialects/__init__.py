"""Wire protocols that clients and backends speak, and the translation between them."""
