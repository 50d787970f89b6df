"""The text form of API keys, and the digest under which the store and the configuration have them."""

from __future__ import annotations

import hashlib
import re
import secrets
import string
import zlib

# An API key is `nh_`, 36 random characters, and a checksum of 6.
#
# Secret scanners recognize it by prefix and length (`PATTERN`). The checksum tells a typo from an unknown key without a
# lookup. The form is that of GitHub's tokens ("Behind GitHub's new authentication token formats", 2021), with their
# CRC-32 in base 62.
#
# A key has 214 bits of randomness, and the gateway keeps its plain SHA-256. Slow, salted hashes protect secrets that
# can be guessed, and would cost every request as much as they cost an attacker's guess.

PREFIX = "nh_"

ALPHABET = string.digits + string.ascii_uppercase + string.ascii_lowercase

RANDOM, CHECK = 36, 6  # characters; 62^6 is more than 2^32

PATTERN = re.compile(rf"{PREFIX}[0-9A-Za-z]{{{RANDOM + CHECK}}}", re.ASCII)


def new_key() -> str:
    """Return a random key."""
    body = PREFIX + "".join(secrets.choice(ALPHABET) for _ in range(RANDOM))
    return body + _checksum(body)


def is_well_formed(text: str) -> bool:
    """Return whether the text has the form and the checksum of `new_key`."""
    return PATTERN.fullmatch(text) is not None and text[-CHECK:] == _checksum(text[:-CHECK])


def digest_of(text: str) -> str:
    """Return the SHA-256 of a key, 64 hex digits: the only form in which the store and the configuration have it."""
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()


def _checksum(body: str) -> str:
    rest, digits = zlib.crc32(body.encode()), ""
    for _ in range(CHECK):
        rest, digit = divmod(rest, len(ALPHABET))
        digits = ALPHABET[digit] + digits
    return digits
