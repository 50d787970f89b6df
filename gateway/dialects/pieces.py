"""A text in the pieces in which a stream says it. Pure."""

from __future__ import annotations

import re

# Some words a piece: small enough to look like a stream, large enough to be cheap. Texts without spaces, such as
# Chinese ones, come in pieces of up to 96 characters.
PIECE = re.compile(r"(?:\s{0,16}\S{1,24}\s{0,16}){1,4}|\s{1,64}")


def pieces_of(text: str) -> list[str]:
    """Joined they are the text."""
    return PIECE.findall(text)
