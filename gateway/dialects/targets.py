"""The one form of a request's target that everything matches on, and that is forwarded."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple
from urllib.parse import unquote

from gateway.dialects.known import DIALECTS, MAX_PATHS

_ESCAPE = re.compile(r"%([0-9A-Fa-f]{2})")
_UNRESERVED = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~")
_SLASHES = re.compile(r"(?<![:/])/{2,}")  # not those of a URL within a path


class Target(NamedTuple):
    """The target of a request. `path` is in its normal form, and `query` as sent, without "?"."""

    path: str
    query: str


def target_of(method: str, target: str) -> Target:
    """Read a target in its origin form: a path, and perhaps a query."""
    given, _, query = target.partition("?")
    path = canonical_path(method, given)
    return Target(path, query)


@lru_cache(maxsize=MAX_PATHS)
def canonical_path(method: str, path: str) -> str:
    """Return a path in its normal form (RFC 3986, section 6.2.2): unreserved characters decoded, escapes in upper case,
    no dot segments. Slashes are joined, as nginx does (`merge_slashes`).

    Servers decode more than that. A path that one of them would read as a path of a dialect becomes that path.
    Otherwise a client could spell its way past the limits, the rights and the routes of such a path.
    """
    if "%" not in path and "//" not in path and "/." not in path and not path.endswith("/"):
        return path
    plain = _without_dot_segments(_SLASHES.sub("/", _ESCAPE.sub(_decode_unreserved, path)))
    if _is_known(method, plain):
        return plain
    decoded = _without_dot_segments(_SLASHES.sub("/", unquote(plain))).rstrip("/")
    return decoded if _is_known(method, decoded) else plain


def _is_known(method: str, path: str) -> bool:
    """Return whether a path is one of a dialect, those that pass through included."""
    return DIALECTS.claimant(method, path) is not None or (method == "POST" and DIALECTS.reader(path) is not None)


def _decode_unreserved(escape: re.Match[str]) -> str:
    character = chr(int(escape[1], 16))
    return character if character in _UNRESERVED else escape[0].upper()


def _without_dot_segments(path: str) -> str:
    """Remove "." and ".." (RFC 3986, section 5.2.4)."""
    if "/." not in path:
        return path
    remaining: list[str] = []
    segments = path.split("/")[1:]
    for segment in segments:
        if segment == "..":
            del remaining[-1:]
        elif segment != ".":
            remaining.append(segment)
    is_folder = segments[-1] in (".", "..")
    return "/" + "/".join(remaining) + ("/" if is_folder and remaining else "")
