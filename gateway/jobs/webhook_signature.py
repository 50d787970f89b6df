"""What a webhook says, and how its receiver knows who says it: Standard Webhooks 1.0
(https://github.com/standard-webhooks/standard-webhooks/blob/main/spec/standard-webhooks.md). Pure."""

from __future__ import annotations

import base64
from datetime import UTC, datetime

import orjson
from standardwebhooks import Webhook

from gateway.job_records import Standing, shown

PREFIX = "whsec_"
MIN_SECRET, MAX_SECRET = 24, 64  # bytes, by the specification
MAX_RESPONSE = 256 * 1024  # of an answer that goes with the webhook; a larger one is fetched


class SecretInvalid(ValueError):
    """One sentence; the secret itself is not in it."""


def secret_of(text: str) -> bytes:
    """`whsec_` and the secret in base64. Raises `SecretInvalid`."""
    try:
        secret = base64.b64decode(text.removeprefix(PREFIX), validate=True) if text.startswith(PREFIX) else b""
    except ValueError:
        secret = b""
    if not MIN_SECRET <= len(secret) <= MAX_SECRET:
        raise SecretInvalid(f"expected whsec_ and {MIN_SECRET} to {MAX_SECRET} random bytes in base64")
    return secret


def message_id(job: str) -> str:
    """The same for every attempt: by it a receiver knows what it has had."""
    return f"msg_{job}"


def payload_of(standing: Standing) -> bytes:
    fits = standing.result is not None and len(standing.result.body) <= MAX_RESPONSE
    return orjson.dumps(
        {
            "type": f"job.{standing.status.value}",
            "timestamp": datetime.fromtimestamp(standing.finished, UTC).isoformat().replace("+00:00", "Z"),
            "data": shown(standing, response=fits or standing.result is None),
        }
    )


def signed(secret: bytes, message: str, now: float, payload: bytes) -> dict[str, str]:
    """The headers. `now`: wall clock, seconds."""
    at = datetime.fromtimestamp(int(now), UTC)
    return {
        "webhook-id": message,
        "webhook-timestamp": str(int(now)),
        "webhook-signature": Webhook(secret).sign(message, at, payload.decode()),
    }
