"""Every setting has a description, and a default that a file may have."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from gateway.config import descriptions
from gateway.config.descriptions import describe, file_default
from gateway.config.policy.schema import AuditRule, CacheRule, PolicyFile
from gateway.config.schema import Config, EmbedderConfig, ServerConfig, Traces
from gateway.config.units import format_duration, format_share, format_size, parse_duration, parse_share, parse_size
from gateway.config.validation import Section
from tests.test_docs import models_in


def sections(root: type[Section]) -> Iterator[type[Section]]:
    yield root
    for field in root.model_fields.values():
        for inner in models_in(field.annotation):
            assert issubclass(inner, Section)
            yield from sections(inner)


SECTIONS = sorted({*sections(Config), *sections(PolicyFile)}, key=lambda section: section.__name__)


@pytest.mark.parametrize("section", SECTIONS, ids=lambda section: section.__name__)
def test_every_key_has_a_description(section: type[Section]) -> None:
    assert list(describe(section)) == section.listed_keys()


def test_a_subclass_has_the_descriptions_of_its_base() -> None:
    assert describe(EmbedderConfig)["threads"] == "Threads of one forward pass."


def test_a_description_is_one_line() -> None:
    assert all("\n" not in text for section in SECTIONS for text in describe(section).values())


def test_without_the_source_there_are_no_descriptions(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(_: object) -> str:
        raise OSError("could not get source code")

    monkeypatch.setattr(descriptions.inspect, "getsource", missing)
    descriptions._module_strings.cache_clear()
    assert describe(AuditRule) == {}
    descriptions._module_strings.cache_clear()


@pytest.mark.parametrize(
    ("section", "key", "default"),
    [
        (ServerConfig, "listen", "127.0.0.1:8080"),
        (ServerConfig, "body_timeout", "30s"),
        (ServerConfig, "max_inflight", 1024),
        (ServerConfig, "tls", None),
        (ServerConfig, "cors", None),
        (Config, "version", None),
        (Config, "data_dir", "var"),
        (CacheRule, "exact", "off"),
        (CacheRule, "jitter", "0%"),
        (Traces, "slow", "30s"),
    ],
)
def test_a_default_is_as_a_file_writes_it(section: type[Section], key: str, default: object) -> None:
    assert file_default(section.model_fields[key]) == default


@pytest.mark.parametrize("text", ["250ms", "1s", "75s", "15m", "24h", "36h", "7d", "0s"])
def test_a_duration_is_written_as_it_is_read(text: str) -> None:
    assert format_duration(parse_duration(text)) == text


@pytest.mark.parametrize("text", ["1%", "99.9%", "0%", "100%"])
def test_a_share_is_written_as_it_is_read(text: str) -> None:
    assert format_share(parse_share(text)) == text


@pytest.mark.parametrize("text", ["1B", "1500B", "32KiB", "10MiB", "1GiB"])
def test_a_size_is_written_as_it_is_read(text: str) -> None:
    assert format_size(parse_size(text)) == text


def test_a_duration_that_is_off() -> None:
    assert format_duration(None) == "off"
