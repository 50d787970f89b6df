"""The requests and answers of the benchmarks: one request per protocol, of similar size."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

QUESTION = "How do I reset the password of my account when the mail with the link never arrives at the address I gave?"
SYSTEM = (
    "You are the assistant of a shop for garden tools. Answer briefly, and never make promises about delivery. " * 3
)
SENTENCE = "Open the settings, choose Security, then Reset password; a link comes by mail and holds for an hour. "
TEXT = SENTENCE * 4


def completion(text: str) -> bytes:
    return (
        b'{"id":"chatcmpl-bench","object":"chat.completion","created":1700000000,"model":"bench","choices":[{"index":0,'
        b'"message":{"role":"assistant","content":"' + text.encode() + b'"},"logprobs":null,"finish_reason":"stop"}],'
        b'"usage":{"prompt_tokens":120,"completion_tokens":90,"total_tokens":210}}'
    )


BODY = completion(TEXT)
EVENTS = 74
LONG = completion(SENTENCE * 15 + SENTENCE[:70])  # as a stream `EVENTS` events
JSON = "Content-Type: application/json\r\n"
NUMBERS = [[0.25 * ((7 * row + column) % 33) for column in range(4)] for row in range(4)]


@dataclass(frozen=True, slots=True)
class Protocol:
    """A protocol. `backend`: its adapter. `path`: below the gateway's and the backend's root.

    Headers end with CRLF each.
    """

    name: str
    backend: str
    path: str
    body: bytes
    answer: bytes
    headers: str = JSON
    answer_headers: str = JSON
    root: str = ""  # of the backend's URL


def _json(value: Any) -> bytes:
    return json.dumps(value).encode()


def _binary(value: dict[str, Any], tail: bytes) -> tuple[bytes, str]:
    """Return KServe's binary form: JSON, the tensors behind it, and a header with the length of the first."""
    head = _json(value)
    length = f"Inference-Header-Content-Length: {len(head)}\r\n"
    return head + tail, f"Content-Type: application/octet-stream\r\n{length}"


CHAT = _json(
    {
        "model": "bench",
        "messages": [{"role": "system", "content": SYSTEM}, {"role": "user", "content": QUESTION}],
    }
)
USAGE = {"prompt_tokens": 120, "completion_tokens": 90, "total_tokens": 210}
MESSAGE = {
    "id": "msg_bench",
    "type": "message",
    "role": "assistant",
    "model": "bench",
    "content": [{"type": "text", "text": TEXT}],
    "stop_reason": "end_turn",
    "stop_sequence": None,
    "usage": {"input_tokens": 120, "output_tokens": 90},
}
RESPONSE = {
    "id": "resp_bench",
    "object": "response",
    "created_at": 1700000000,
    "status": "completed",
    "model": "bench",
    "output": [
        {
            "type": "message",
            "id": "msg_bench",
            "status": "completed",
            "role": "assistant",
            "content": [{"type": "output_text", "text": TEXT, "annotations": []}],
        }
    ],
    "usage": {"input_tokens": 120, "output_tokens": 90, "total_tokens": 210},
}
TENSOR = {"name": "x", "datatype": "FP32", "shape": [4, 4]}
OUT = {"name": "y", "datatype": "FP32", "shape": [4, 4]}
BINARY, BINARY_HEADERS = _binary(
    {
        "inputs": [TENSOR | {"parameters": {"binary_data_size": 64}}],
        "outputs": [{"name": "y", "parameters": {"binary_data": True}}],
    },
    bytes(range(64)),
)
BINARY_ANSWER, BINARY_ANSWER_HEADERS = _binary(
    {"model_name": "binary", "outputs": [OUT | {"parameters": {"binary_data_size": 64}}]}, bytes(range(64))
)

PROTOCOLS = (
    Protocol("chat completion", "openai", "/v1/chat/completions", CHAT, BODY, root="/v1"),
    Protocol(
        "completion",
        "openai",
        "/v1/completions",
        _json({"model": "bench", "prompt": SYSTEM + QUESTION}),
        _json(
            {
                "id": "cmpl-bench",
                "object": "text_completion",
                "created": 1700000000,
                "model": "bench",
                "choices": [{"index": 0, "text": TEXT, "logprobs": None, "finish_reason": "stop"}],
                "usage": USAGE,
            }
        ),
        root="/v1",
    ),
    Protocol(
        "embeddings, one input of 384",
        "openai",
        "/v1/embeddings",
        _json({"model": "bench", "input": QUESTION}),
        _json(
            {
                "object": "list",
                "model": "bench",
                "data": [{"object": "embedding", "index": 0, "embedding": [0.01 * (i % 97) for i in range(384)]}],
                "usage": {"prompt_tokens": 30, "total_tokens": 30},
            }
        ),
        root="/v1",
    ),
    Protocol(
        "responses",
        "openai",
        "/v1/responses",
        _json({"model": "bench", "instructions": SYSTEM, "input": QUESTION}),
        _json(RESPONSE),
        root="/v1",
    ),
    Protocol(
        "messages",
        "anthropic",
        "/v1/messages",
        _json(
            {
                "model": "bench",
                "max_tokens": 512,
                "system": SYSTEM,
                "messages": [{"role": "user", "content": QUESTION}],
            }
        ),
        _json(MESSAGE),
    ),
    Protocol(
        "KServe infer, JSON",
        "kserve",
        "/v2/models/plain/infer",
        _json({"inputs": [TENSOR | {"data": [number for row in NUMBERS for number in row]}]}),
        _json({"model_name": "plain", "outputs": [OUT | {"data": [number for row in NUMBERS for number in row]}]}),
    ),
    Protocol(
        "KServe infer, binary",
        "kserve",
        "/v2/models/binary/infer",
        BINARY,
        BINARY_ANSWER,
        BINARY_HEADERS,
        BINARY_ANSWER_HEADERS,
    ),
    Protocol(
        "TensorFlow Serving predict",
        "tfserving",
        "/v1/models/bench:predict",
        _json({"instances": NUMBERS}),
        _json({"predictions": NUMBERS}),
    ),
    Protocol(
        "TorchServe prediction",
        "torchserve",
        "/predictions/bench",
        _json({"data": NUMBERS}),
        _json(NUMBERS),
    ),
)
