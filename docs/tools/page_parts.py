"""Replace the part of a page between `<!-- NAME -->` and `<!-- end -->`, which a command writes."""

from __future__ import annotations

import re


def with_part(page: str, name: str, content: str) -> str:
    """Return the page with `content` as the part `name`. Raise `ValueError` if the page does not have it once."""
    part = re.compile(rf"(<!-- {re.escape(name)} -->\n).*?(<!-- end -->)", re.DOTALL)
    page, count = part.subn(lambda found: f"{found[1]}\n{content}\n{found[2]}", page)
    if count != 1:
        raise ValueError(f"the page has {count} parts `<!-- {name} -->` with an `<!-- end -->`, expected one")
    return page
