"""Find the links in the body of a call: behind one, another picture may be later. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

# Parts of the names that servers give to fields for pictures, sounds, videos and weights, such as `reference_images`,
# `initImage`, `image_loras` or `mask_url`. Another name with such a part costs no more than a hit.
_MEDIUM = re.compile("image|img|picture|photo|frame|mask|video|audio|sound|lora", re.IGNORECASE)
# Browsers and servers skip the first ones before a link, and the others anywhere in it (https://url.spec.whatwg.org).
_SKIPPED, _REMOVED = "".join(map(chr, range(0x21))), str.maketrans("", "", "\t\n\r")
MAX_START = 256  # characters in which a text begins: with more of those before it, it counts as a link
_JSON = tuple("[{\"'")  # the beginning of JSON in a text, such as a field of a form
_ADDRESS = re.compile(r"[a-z][a-z0-9+.-]*:[/\\]{2}", re.IGNORECASE)
# In a field for media every scheme but `data` is a link, and so is one without a scheme. Base64 may begin with `//`.
_REFERENCE = re.compile(r"(?!data:)[a-z][a-z0-9+.-]*:|[/\\]{2}[a-z0-9-]+\.[a-z0-9.-]+(?:[:/?#\\]|$)", re.IGNORECASE)


def has_link(body: object, *, everywhere: bool = False) -> bool:
    """Return whether a body names a picture or the like by a link. Elsewhere a link is a text. With `everywhere`, each
    value that begins with one counts. Not a recursion: a body may be nested deeply."""
    waiting: list[tuple[Any, bool]] = [(body, False)]
    media: dict[str, bool] = {}  # the names that occurred: lists of objects repeat theirs
    while waiting:
        value, is_medium = waiting.pop()
        if isinstance(value, str):
            if (is_medium or everywhere) and _begins_with_link(value, is_medium=is_medium):
                return True
        elif isinstance(value, list | tuple):
            waiting += [(each, is_medium) for each in value]
        elif isinstance(value, Mapping):
            for name, each in value.items():
                if (names_medium := media.get(name)) is None:
                    names_medium = media[name] = _MEDIUM.search(name) is not None
                waiting.append((each, is_medium or names_medium))
    return False


def _begins_with_link(text: str, *, is_medium: bool) -> bool:
    start = text[:MAX_START].lstrip(_SKIPPED).translate(_REMOVED)
    if start.startswith(_JSON):
        return "://" in text
    return (_REFERENCE if is_medium else _ADDRESS).match(start) is not None or (not start and len(text) > MAX_START)
