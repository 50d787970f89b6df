"""Subjects: those who caused an entry, a line of a log, a label or a job, by keyed digests of their names. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b, sha256

import orjson

KINDS = ("user", "key", "tenant")

MAX_CACHED = 4_096  # names whose digests a process remembers

MAX_NAMES = 8  # of one request

DIGEST_BYTES = 16

SubjectsOf = Callable[[str | None, str], tuple[str, ...]]
"""Returns the digests of a request's user (None: it names none) and of the name of its API key (empty: none)."""


@dataclass(frozen=True, slots=True)
class Subject:
    """A subject as an operator names it."""

    kind: str  # one of `KINDS`
    name: str


def parse_subject(text: str) -> Subject:
    """Return the subject in `user:NAME`, `key:NAME` or `tenant:NAME`. Raise `ValueError` with the whole sentence."""
    kind, _, name = text.partition(":")
    if kind not in KINDS or not name:
        raise ValueError("expected user:NAME, key:NAME or tenant:NAME")
    return Subject(kind, name)


def subject_key(secret: str) -> bytes:
    """Return the key of the digests. `secret` is random, so it needs no slow derivation."""
    return sha256(b"nearhit/subjects/" + secret.encode()).digest()


class SubjectDigests:
    """The digests of subjects under one key. Without the key nobody can try names."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._cached = lru_cache(maxsize=MAX_CACHED)(self._of_request)
        self.of_request: SubjectsOf = self._cached

    def of(self, kind: str, name: str) -> str:
        """Return the digest of a subject: its kind as one letter, then 32 hex digits."""
        data = f"{kind}\0{name}".encode("utf-8", "surrogatepass")
        return kind[0] + blake2b(data, key=self._key, digest_size=DIGEST_BYTES).hexdigest()

    def forget(self) -> None:
        """Forget the names of former requests."""
        self._cached.cache_clear()

    def _of_request(self, user: str | None, key_name: str) -> tuple[str, ...]:
        users = [self.of("user", name) for name in names_in(user)]
        return (*users, self.of("key", key_name)) if key_name else tuple(users)


def names_in(user: str | None) -> Sequence[str]:
    """Return the names in the user of a call. Two names are one JSON list (`user_of` of OpenAI's dialect)."""
    if not user:
        return ()
    if user.startswith('["'):
        try:
            names = orjson.loads(user)
        except orjson.JSONDecodeError:
            return (user,)
        if isinstance(names, list) and all(isinstance(name, str) for name in names):
            return names[:MAX_NAMES]
    return (user,)


def body_user(body: bytes) -> str | None:
    """Return the users that a JSON body names, in any dialect, as `names_in` reads them, or None if it names nobody.

    A body that names none is not parsed.
    """
    if b'"user' not in body and b'"safety_identifier"' not in body:
        return None
    try:
        fields = orjson.loads(body)
    except orjson.JSONDecodeError:
        return None
    if not isinstance(fields, dict):
        return None
    metadata = fields.get("metadata")
    candidates = (
        fields.get("user"),
        fields.get("safety_identifier"),
        metadata.get("user_id") if isinstance(metadata, dict) else None,
    )
    names = list(dict.fromkeys(name for name in candidates if isinstance(name, str) and name))
    return orjson.dumps(names).decode() if len(names) > 1 else next(iter(names), None)
