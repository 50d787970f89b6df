"""Sign the report of an erasure, and verify it. Pure.

The key is Ed25519, derived from the secret of erasures. Anyone who has the public key can verify a
report.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any

import orjson

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

ALGORITHM = "Ed25519"

FIELDS = frozenset({"report", "algorithm", "public_key", "signature"})

# What no erasure reaches. The report says it, so that nobody takes it for more than it is.
LIMITS = (
    "an answer that somebody else asked for first stays, although the subject was served it",
    "entries, jobs, rows and labels of versions that did not record subjects are not found",
    "learnt pairs of a question that was neither stored, recorded nor kept with its text are not found: they are "
    "digests and vectors without a name",
    "counts and weights that were learnt stay; they have no text",
    "recent texts in the memory of the embedder stay until others take their place, or the gateway restarts",
    "other gateways on the store erase their own logs and labels within seconds, or when they start, and log counts",
    "exports, backups, snapshots of the store's disk, backends, traces and logs elsewhere are not reached",
)


class ReportInvalid(ValueError):
    """The document is not a signed report, or the signature does not fit."""


def sign(report: Mapping[str, Any], secret: str) -> dict[str, Any]:
    """Return the document: the report, with its signature and the public key, in hex."""
    key = _key(secret)
    signature = key.sign(_canonical(report))
    return {
        "report": dict(report),
        "algorithm": ALGORITHM,
        "public_key": key.public_key().public_bytes_raw().hex(),
        "signature": signature.hex(),
    }


def public_key(secret: str) -> str:
    """Return the public key of the gateways with this secret, in hex."""
    return _key(secret).public_key().public_bytes_raw().hex()


def verify(document: object, expected: str) -> Mapping[str, Any]:
    """Return the report of a document that the key `expected` (in hex) has signed. Raise `ReportInvalid`."""
    if not isinstance(document, dict) or not document.keys() >= FIELDS or not isinstance(document["report"], dict):
        raise ReportInvalid("it is not a report of an erasure")
    if document["algorithm"] != ALGORITHM:
        raise ReportInvalid(f"its algorithm is not {ALGORITHM}")
    if document["public_key"] != expected:
        raise ReportInvalid("it was signed with another key")
    ed25519 = import_module("cryptography.hazmat.primitives.asymmetric.ed25519")
    invalid = import_module("cryptography.exceptions").InvalidSignature
    try:
        key = ed25519.Ed25519PublicKey.from_public_bytes(bytes.fromhex(expected))
        key.verify(bytes.fromhex(document["signature"]), _canonical(document["report"]))
    except (invalid, ValueError, TypeError):
        raise ReportInvalid("its signature does not fit: it was changed") from None
    report: Mapping[str, Any] = document["report"]
    return report


def _key(secret: str) -> Ed25519PrivateKey:
    seed = hashlib.sha256(b"nearhit/erasure/signature/" + secret.encode()).digest()
    ed25519 = import_module("cryptography.hazmat.primitives.asymmetric.ed25519")
    key: Ed25519PrivateKey = ed25519.Ed25519PrivateKey.from_private_bytes(seed)
    return key


def _canonical(report: Mapping[str, Any]) -> bytes:
    return orjson.dumps(report, option=orjson.OPT_SORT_KEYS)
