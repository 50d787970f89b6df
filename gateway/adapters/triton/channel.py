"""Options of the gRPC channels to Triton."""

from __future__ import annotations

# gRPC's own backoff ends at 120 s: a server that is back would be refused without a try for as long. Whether one that
# fails is asked is the breaker's to say; a try at an address where nobody listens costs 0.1 ms.
RECONNECT = (("grpc.initial_reconnect_backoff_ms", 200), ("grpc.max_reconnect_backoff_ms", 1000))
# As tritonclient has it where it is given none.
OPTIONS = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1), *RECONNECT]
