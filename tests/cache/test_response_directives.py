"""`Cache-Control` and `Vary` of answers are read. The scenes `response_directives.yaml` show what they decide."""

from __future__ import annotations

from gateway.cache.response_directives import directives_of


def test_several_lines_are_one_list() -> None:
    read = directives_of(
        [("Vary", "A"), ("vary", "b , "), ("Cache-Control", "max-age=1"), ("cache-control", "PRIVATE")]
    )
    assert (read.vary, read.private, read.no_store) == (frozenset({"a", "b"}), True, False)
