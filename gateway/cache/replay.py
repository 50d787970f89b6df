"""A stored answer played back as a stream: at once, or at the pace of a model. Pure but for the sleeper it is given."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable

from gateway.config.policy.model import Replay
from gateway.messages import Event, Provenance
from gateway.ports import Clock

Sleep = Callable[[float], Awaitable[None]]  # seconds
LONGEST_S = 60.0  # a slow model's longest answer: who is served from a cache does not wait longer than this
USUAL_RATE = 50.0  # tokens a second where neither the policy nor the entry tells; a small model's on one GPU


def lasts_s(rule: Replay, origin: Provenance, events: int, left_s: float | None) -> float:
    """How long the stream takes from its first event to its last; seconds in [0, `LONGEST_S`], and at most `left_s`,
    which is what the client's deadline leaves. The entry's own pace counts its time to the first token in."""
    tokens = origin.output_tokens or events
    known = origin.output_tokens > 0 and origin.upstream_s > 0
    rate = rule.rate or (origin.output_tokens / origin.upstream_s if known else USUAL_RATE)
    longest = LONGEST_S if left_s is None else max(0.0, min(LONGEST_S, left_s))
    return min(tokens / rate, longest)


async def paced(
    events: tuple[Event, ...], duration_s: float, clock: Clock, sleep: Sleep
) -> AsyncGenerator[Event, None]:
    """The first event at once, the others evenly after it. What is late goes out without a pause, so that pauses that
    take too long do not add up."""
    started = clock.monotonic()
    gap = duration_s / max(1, len(events) - 1)
    for place, event in enumerate(events):
        wait = started + place * gap - clock.monotonic()
        if wait > 0:
            await sleep(wait)
        yield event
