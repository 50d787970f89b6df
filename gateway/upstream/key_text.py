"""Read an API key from a text or a file: the key alone, or a JSON object that also tells when it ends."""

from __future__ import annotations

import math
import os
import re
import stat
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import orjson

from gateway.upstream.http1.errors import NoCredentials
from gateway.upstream.shared_token import Token

MAX_BYTES = 64 * 1024  # of a file
MAX_WORDS = 500  # characters of what another program says
MAX_KEY = 16 * 1024  # characters: tokens of users in hundreds of groups have ten thousand
# The second spelling is that of gcloud, the third that of the Azure CLI, the last that of Kubernetes.
KEYS = ("api_key", "access_token", "accessToken", "token")
ENDS = ("expires_at", "expires_on", "expirationTimestamp")
EXPECTED = 'expected a key of one line, or {"api_key": "...", "expires_at": "2030-01-31T12:00:00Z"}'
_KEY = re.compile(r"[\x21-\x7e](?:[\x20-\x7e]*[\x21-\x7e])?")
# Each run of these characters is read once: a search that looks ahead takes minutes for a bar of 64 KiB.
_RUN = re.compile(r"[\w+=.~/-]{20,}")
_NAMES = r"(?:secret|passw(?:or)?d|token|api[_-]?key)"
_NAMED = re.compile(  # a variable, a member of JSON, an option
    rf"""({_NAMES}(?:[=]|["'][ ]?:)[ ]?["']?|--[\w-]{{0,32}}{_NAMES}[ ])[^\s"'&,;]{{1,4096}}""", re.IGNORECASE
)
MASK = "***"


def masked(words: str, known: str = "") -> str:
    """Return the last words of another program in one line, without what looks like a secret, and without the `known`
    one. Its time is linear in the length of `words`."""
    if known:
        words = words.replace(known, MASK)
    line = "".join(each if each.isprintable() else "?" for each in " ".join(words.split()))
    return _RUN.sub(_mask_of_run, _NAMED.sub(rf"\1{MASK}", line))[-MAX_WORDS:]


def _mask_of_run(run: re.Match[str]) -> str:
    """Return the mask of a run that has a digit and is no path. Base64 has slashes, too, but letters of both sizes."""
    text = run[0]
    if not any(each.isdigit() for each in text):
        return text
    if "/" in text and (text[0] in "/.-" or "." in text or text.islower() or text.isupper()):
        return text
    return text if text[0] in "/.-" else MASK


def read_key(path: Path, wall: float) -> str:
    """Return the key in a file. Raise `NoCredentials`, which does not name the file."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # a pipe without a writer does not block
        with os.fdopen(descriptor, "rb") as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise NoCredentials("it is no regular file")
            text = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise NoCredentials(f"it cannot be read: {error.strerror}") from None
    if len(text) > MAX_BYTES:
        raise NoCredentials(f"it is larger than {MAX_BYTES} bytes")
    return token_of(text, wall).value


def token_of(text: bytes, wall: float) -> Token[str]:
    """Return the key in `text`, without white space around it. `wall` is the time now, in seconds since the epoch.

    Raise `NoCredentials`, without any part of the text.
    """
    try:
        content = text.decode("utf-8-sig").strip()
    except UnicodeDecodeError:
        raise NoCredentials(f"the text is not UTF-8, {EXPECTED}") from None
    if not content:
        raise NoCredentials(f"the text is empty, {EXPECTED}")
    return _token_of_object(content, wall) if content.startswith("{") else Token(checked_key(content))


def _token_of_object(content: str, wall: float) -> Token[str]:
    try:
        value = orjson.loads(content)
    except orjson.JSONDecodeError:
        raise NoCredentials(f"the text begins with a brace and is no JSON, {EXPECTED}") from None
    if isinstance(value.get("status"), dict):  # an ExecCredential of Kubernetes
        value = value["status"]
    key = next((value[name] for name in KEYS if value.get(name)), None)
    if not isinstance(key, str):
        raise NoCredentials(f"the JSON object has no key, {EXPECTED}")
    return Token(checked_key(key.strip()), _life_s(value, wall))


def checked_key(key: str) -> str:
    """Return a key that a header can carry. Raise `NoCredentials` for any other one, without it."""
    if "\n" in key or "\r" in key:
        raise NoCredentials(f"the text has several lines, {EXPECTED}")
    if len(key) > MAX_KEY:
        raise NoCredentials(f"the key has {len(key)} characters, expected at most {MAX_KEY}")
    if not _KEY.fullmatch(key):
        raise NoCredentials("the key has characters that no header can carry, expected visible ASCII")
    return key


def _life_s(value: Mapping[str, Any], wall: float) -> float | None:
    """Return the seconds until the key of an object ends, or None if the object does not tell."""
    if value.get("expires_in") is not None:
        return seconds(value["expires_in"], "expires_in")
    name = next((name for name in ENDS if value.get(name) is not None), None)
    if name is None:
        return None
    end = value[name]
    if isinstance(end, str) and not end.strip().isdigit():
        try:
            moment = datetime.fromisoformat(end.strip())
        except ValueError:
            moment = None
        if moment is None or moment.tzinfo is None:
            raise NoCredentials(f"{name} is no time with a zone, expected one such as 2030-01-31T12:00:00Z")
        return moment.timestamp() - wall
    return seconds(end, name) - wall


def seconds(value: object, name: str) -> float:
    """Return a number of seconds, which some servers write as a text. Raise `NoCredentials`."""
    try:
        number = float(value) if isinstance(value, int | float | str) and not isinstance(value, bool) else math.nan
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise NoCredentials(f"{name} is no number, expected seconds")
    return number
