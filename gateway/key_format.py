"""What an API key looks like: `nh_`, 36 random characters, 6 of a checksum. Pure but for the system's randomness.

The prefix and the length let secret scanners know one (`PATTERN`); the checksum tells a key from what looks like one,
and a typo from a key that is not known, without asking anybody. It is the form of GitHub's tokens ("Behind GitHub's new
authentication token formats", 2021), with their CRC-32 in base 62.

A key has 214 bits of randomness. What is kept of it is its plain SHA-256: slow, salted hashes are for secrets that can
be guessed, and would cost each request what they cost a guess.
"""

from __future__ import annotations

import hashlib
import re
import secrets
import string
import zlib

PREFIX = "nh_"
ALPHABET = string.digits + string.ascii_uppercase + string.ascii_lowercase
RANDOM, CHECK = 36, 6  # characters; 62^6 is more than 2^32
PATTERN = re.compile(rf"{PREFIX}[0-9A-Za-z]{{{RANDOM + CHECK}}}", re.ASCII)


def new_key() -> str:
    body = PREFIX + "".join(secrets.choice(ALPHABET) for _ in range(RANDOM))
    return body + _checksum(body)


def well_formed(text: str) -> bool:
    """Whether it is a key as `new_key` makes them."""
    return PATTERN.fullmatch(text) is not None and text[-CHECK:] == _checksum(text[:-CHECK])


def digest_of(text: str) -> str:
    """What is kept of a key, of the store's and of the configuration's. 64 hex digits."""
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()


def _checksum(body: str) -> str:
    rest, digits = zlib.crc32(body.encode()), ""
    for _ in range(CHECK):
        rest, digit = divmod(rest, len(ALPHABET))
        digits = ALPHABET[digit] + digits
    return digits
