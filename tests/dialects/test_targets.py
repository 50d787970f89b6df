"""A path has one form, however it is spelt."""

from __future__ import annotations

import pytest

from gateway.dialects.targets import canonical_path

CHAT = "/v1/chat/completions"


@pytest.mark.parametrize(
    "path",
    [
        CHAT,
        "/v1/chat/%63ompletions",
        "/v1/%63%68%61%74/completions",
        "/v1/chat/./completions",
        "/v1/files/../chat/completions",
        "/v1/chat/%2e/completions",
        "/v1/x/%2E%2e/chat/completions",
        "/v1//chat/completions",
        "//v1/chat///completions",
        "/v1/chat/completions/",
        "/v1/chat/completions//",
        "/v1/chat%2Fcompletions",
        "/v1%2fchat%2Fcompletions",
        "/../v1/chat/completions",
    ],
)
def test_each_spelling_of_a_path_of_a_dialect_is_that_path(path: str) -> None:
    assert canonical_path("POST", path) == CHAT


@pytest.mark.parametrize("path", ["/v2/rerank/", "/v2/%72erank", "/v2%2Frerank", "/v1/x/../../v2//rerank//"])
def test_so_is_each_spelling_of_a_path_that_passes_through_and_is_cached(path: str) -> None:
    assert canonical_path("POST", path) == "/v2/rerank"


@pytest.mark.parametrize(
    ("path", "canonical"),
    [
        ("/v1/files/", "/v1/files/"),
        ("/a%20b/%7Ec", "/a%20b/~c"),
        ("/a%2fb", "/a%2Fb"),
        ("/a//b", "/a/b"),
        ("/a///%2e//b//", "/a/b/"),
        ("/a/b/..", "/a/"),
        ("/..", "/"),
        ("/", "/"),
        ("/v2/models/a%2Fb/infer", "/v2/models/a%2Fb/infer"),
        ("/proxy/https://host//x", "/proxy/https://host/x"),
        ("/%zz", "/%zz"),
        ("*", "*"),
    ],
)
def test_any_other_path_keeps_what_may_mean_something(path: str, canonical: str) -> None:
    assert canonical_path("POST", path) == canonical
