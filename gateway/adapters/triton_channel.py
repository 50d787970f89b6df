"""The options of the gRPC channels to Triton servers."""

from __future__ import annotations

# gRPC's own backoff grows to 120 s, so calls to a recovered server would fail for as long without an attempt. The
# breaker decides whether to call a failing server. An attempt at an address where nobody listens costs 0.1 ms.
RECONNECT = (("grpc.initial_reconnect_backoff_ms", 200), ("grpc.max_reconnect_backoff_ms", 1000))

# The defaults of tritonclient if it gets no options.
OPTIONS = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1), *RECONNECT]
