"""An endpoint with equal answers for equivalent questions, and a client that recognises hits by their answers."""

from __future__ import annotations

import hashlib
import http.client
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

# Eight of them are an answer: unlike for other questions, so that an audit that compares answers can tell.
NOUNS = (
    "acorn", "amber", "anvil", "barley", "beacon", "bridge", "candle", "canvas", "cellar", "cinder", "clover",
    "compass", "copper", "coral", "cradle", "dagger", "ember", "fabric", "feather", "fennel", "flint", "furnace",
    "garnet", "ginger", "granite", "hammer", "harness", "hollow", "indigo", "island", "ivory", "jasmine", "kernel",
    "lagoon", "lattice", "lemon", "linen", "marble", "meadow", "mirror", "needle", "nettle", "olive", "otter", "paddle",
    "pebble", "pepper", "pillar", "plaster", "prairie", "quiver", "ribbon", "saffron", "saucer", "shovel", "sparrow",
    "spindle", "temple", "thistle", "timber", "tunnel", "velvet", "willow", "yarrow",
)  # fmt: skip


def name_of(question: str) -> str:
    return hashlib.sha256(question.encode("utf-8", "surrogatepass")).hexdigest()[:20]


def answer_of(number: int) -> str:
    digest = hashlib.sha256(str(number).encode()).digest()
    return f"The answer: {', '.join(NOUNS[byte % len(NOUNS)] for byte in digest[:8])}."


@contextmanager
def stub(answers: Mapping[str, int]) -> Iterator[ThreadingHTTPServer]:
    """Serve on a free port of this machine. `calls` of the server counts its answers."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 (the library's name)
            return

        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            question = str(asked["messages"][-1]["content"])
            message = {"role": "assistant", "content": answer_of(answers.get(question, -1))}
            said = {
                "id": "stub", "object": "chat.completion", "created": 0, "model": "stub",
                "system_fingerprint": name_of(question),
                "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
                "usage": {"prompt_tokens": 10, "completion_tokens": 10, "total_tokens": 20},
            }  # fmt: skip
            body = json.dumps(said).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join(5)


class Client:
    """One connection to a gateway."""

    def __init__(self, port: int) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)

    def ask(self, question: str) -> tuple[str, str]:
        """Return the answer, and the name of the question that it was made for."""
        body = {"model": "stub", "temperature": 0, "messages": [{"role": "user", "content": question}]}
        headers = {"Content-Type": "application/json"}
        self._connection.request("POST", "/v1/chat/completions", json.dumps(body).encode(), headers)
        response = self._connection.getresponse()
        said: dict[str, Any] = json.loads(response.read())
        if response.status != 200:
            raise RuntimeError(f"the gateway answered {response.status}: {said}")
        return str(said["choices"][0]["message"]["content"]), str(said["system_fingerprint"])

    def close(self) -> None:
        self._connection.close()
