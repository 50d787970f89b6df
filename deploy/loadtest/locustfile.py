"""Sends the mix of `mix.py` as streamed chats, and counts how each was answered.

    locust -f deploy/loadtest/locustfile.py --headless -u 20 -t 1m --host http://127.0.0.1:8080

The statistics have a row for short and for long prompts by the outcome in `Cache-Status`. Response times are those of
whole streams. At the end it prints the hit rate and the time to the first event. Variables: MODEL, API_KEY, and
QUESTIONS, a file as for `mix.py`.
"""

from __future__ import annotations

import os
import random
import re
import time
from pathlib import Path
from typing import Any

from locust import FastHttpUser, between, events, task
from locust.stats import RequestStats
from mix import QUESTIONS, Mix, read_wordings

MODEL = os.environ.get("MODEL", "gpt-4o-mini")
HEADERS = {"Authorization": f"Bearer {os.environ.get('API_KEY', 'load-test')}"}
MIX = Mix(read_wordings(Path(os.environ.get("QUESTIONS", QUESTIONS))))
CHUNK = 4096
END = "data: [DONE]"

first_events = RequestStats()


def outcome(cache_status: str) -> str:
    """Return exact, semantic, stale, miss or bypass."""
    found = re.search(r"hit; detail=(\w+)|fwd=(\w+)", cache_status)
    return (found[1] or found[2]) if found else "unknown"


class ChatUser(FastHttpUser):
    """A person who asks, reads for a moment, and asks again."""

    wait_time = between(0.1, 1.0)

    @task
    def ask(self) -> None:
        prompt = MIX.draw(random)  # type: ignore[arg-type]
        body = {"model": MODEL, "stream": True, "messages": [{"role": "user", "content": prompt.text}]}
        began = time.perf_counter()
        with self.client.post(
            "/v1/chat/completions", json=body, headers=HEADERS, stream=True, catch_response=True
        ) as response:
            if response.status_code != 200:
                response.failure(f"status {response.status_code}")
                return
            end, size = "", 0
            for chunk in response.iter_content(chunk_size=CHUNK, decode_content=True):
                if not size:
                    first_events.log_request("SSE", "first event", _since(began), 0)
                size += len(chunk)
                end = (end + chunk)[-CHUNK:]
            kind = "long" if prompt.long else "short"
            response.request_meta["name"] = f"{kind}, {outcome(response.headers.get('Cache-Status', ''))}"
            response.request_meta["response_time"] = _since(began)
            response.request_meta["response_length"] = size
            if END not in end:
                response.failure("the stream was cut")


def _since(began: float) -> float:
    return (time.perf_counter() - began) * 1000


@events.quitting.add_listener
def report(environment: Any, **_: Any) -> None:
    """Print the share of hits, and the time to the first event."""
    entries = environment.stats.entries.values()
    asked = sum(entry.num_requests for entry in entries)
    hits = sum(entry.num_requests for entry in entries if entry.name.endswith(("exact", "semantic", "stale")))
    first = first_events.total
    print(
        f"hit rate {hits / max(asked, 1):.1%} of {asked} requests; first event: "
        f"p50 {first.get_response_time_percentile(0.5) or 0:.0f} ms, "
        f"p99 {first.get_response_time_percentile(0.99) or 0:.0f} ms"
    )
