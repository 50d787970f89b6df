"""An HTTP/1.1 client for one origin, on `httptools` and asyncio's protocols: docs/decisions/0030."""
