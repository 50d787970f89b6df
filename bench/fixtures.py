"""The questions that the benchmarks send to a gateway, and its plainest configuration."""

from __future__ import annotations

import json
import random

from bench.protocols import QUESTION, SYSTEM

CONFIG = """
version: 1
server: {{listen: 127.0.0.1:{port}, admin: 127.0.0.1:{admin}}}
embedder: {{adapter: {embedder}, timeout: 60s}}
backends:
  main: {{adapter: openai, url: http://127.0.0.1:{upstream}/v1}}
{more}"""
POLICY = """
version: 1
routes:
  - {name: through, match: {model: uncached}, route: {backend: main}}
  - {name: exactly, match: {model: "exactly-*"}, cache: {exact: {ttl: 1h}}, route: {backend: main}}
  - name: default
    match: {}
    cache: {exact: {ttl: 1h}, semantic: {ttl: 1h, min_similarity: 0.9}}
    route: {backend: main}
"""


def body(question: str, model: str = "bench", **fields: object) -> bytes:
    messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": question}]
    return json.dumps({"model": model, "temperature": 0, "messages": messages, **fields}).encode()


def other_case(draw: random.Random) -> str:
    """Return another text with the same tokens (the model is uncased), so that no memory of texts helps. Its case means
    nothing, as it is that of the whole text."""
    text = other_spacing(draw)
    return text.upper() if draw.random() < 0.5 else text.lower()


def other_spacing(draw: random.Random) -> str:
    """Return the same words: a hit under any promise, however little a route has learnt."""
    return "".join(c + " " * draw.getrandbits(1) if c == " " else c for c in QUESTION) + " " * draw.randint(1, 9)


def new_question(draw: random.Random) -> str:
    """Return a question that was never asked, unlike every other."""
    return " ".join(f"w{draw.getrandbits(40):x}" for _ in range(16))
