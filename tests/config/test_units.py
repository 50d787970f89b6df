"""Durations, shares, sizes and addresses: what they mean, and the sentence for what is none."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.config import units


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("250ms", 0.25), ("30s", 30), ("1.5s", 1.5), ("5m", 300), ("24h", 86400), ("7d", 604800), ("0s", 0), (0, 0)],
)
def test_a_duration_is_seconds(text: object, seconds: float) -> None:
    assert units.parse_duration(text) == seconds


@pytest.mark.parametrize("value", ["24 hors", "24H", "-1s", "1h30m", "", "s", "٣s", 30, 1.5, True, False, None, [], {}])
def test_what_is_no_duration_is_told_what_one_looks_like(value: object) -> None:
    with pytest.raises(ValueError, match=r"^expected a duration such as 250ms, 30s, 5m, 24h or 7d, got "):
        units.parse_duration(value)


def test_the_sentence_of_a_duration_is_as_documented() -> None:
    with pytest.raises(ValueError) as caught:
        units.parse_duration("24 hors")
    assert str(caught.value) == "expected a duration such as 250ms, 30s, 5m, 24h or 7d, got '24 hors'"


def test_a_duration_has_an_end() -> None:
    assert units.parse_duration("3650d") == 3650 * 86400
    with pytest.raises(ValueError, match="at most 3650d"):
        units.parse_duration("3651d")


def test_a_positive_duration_is_not_zero() -> None:
    assert units.parse_positive_duration("1ms") == 0.001
    with pytest.raises(ValueError, match="longer than 0s, got 0"):
        units.parse_positive_duration(0)


def test_a_duration_may_be_off() -> None:
    assert [units.parse_duration_or_off(value) for value in ("5m", "off", False, None)] == [300.0, None, None, None]
    for value in ("0s", "on", True, 5, "never"):
        with pytest.raises(ValueError, match=r"^expected off or a duration such as 5m, got "):
            units.parse_duration_or_off(value)


@pytest.mark.parametrize(
    ("value", "share"), [("1%", 0.01), ("0.5%", 0.005), ("100%", 1), ("0%", 0), (0.01, 0.01), (1.0, 1), (0, 0)]
)
def test_a_share_is_a_part_of_one(value: object, share: float) -> None:
    assert units.parse_share(value) == pytest.approx(share)


@pytest.mark.parametrize("value", ["1", "0.01", "1 %", "-1%", 1, 2, True, None, "all", [1]])
def test_what_is_no_share_is_told_what_one_looks_like(value: object) -> None:
    with pytest.raises(ValueError, match=r"^expected a share such as 1% or 0.01, got "):
        units.parse_share(value)


@pytest.mark.parametrize("value", ["101%", 1.01, -0.1, float("nan"), float("inf")])
def test_a_share_lies_between_nothing_and_all(value: object) -> None:
    with pytest.raises(ValueError, match="between 0% and 100%"):
        units.parse_share(value)


@pytest.mark.parametrize(
    ("value", "size"),
    [("64MiB", 64 * 2**20), ("1GB", 10**9), ("1kB", 1000), ("32KiB", 32768), ("5B", 5), (1024, 1024)],
)
def test_a_size_is_bytes(value: object, size: int) -> None:
    assert units.parse_size(value) == size


@pytest.mark.parametrize("value", ["10 MiB", "10mb", "1.5GiB", "10", True, None, 1.0])
def test_what_is_no_size_is_told_what_one_looks_like(value: object) -> None:
    with pytest.raises(ValueError, match=r"^expected a size such as 64MiB, 1GB or a number of bytes, got "):
        units.parse_size(value)


@pytest.mark.parametrize("value", [0, -1, "0B", "1025TiB", 10**30])
def test_a_size_has_bounds(value: object) -> None:
    with pytest.raises(ValueError, match="between 1B and 1024TiB"):
        units.parse_size(value)


@pytest.mark.parametrize(
    ("text", "host", "port", "loopback"),
    [
        ("127.0.0.1:8080", "127.0.0.1", 8080, True),
        ("[::1]:0", "::1", 0, True),
        ("localhost:80", "localhost", 80, True),
        ("0.0.0.0:80", "0.0.0.0", 80, False),
        ("[::]:80", "::", 80, False),
        ("127.0.0.1.example.org:80", "127.0.0.1.example.org", 80, False),
    ],
)
def test_an_address_is_a_host_and_a_port(text: str, host: str, port: int, loopback: bool) -> None:
    address = units.parse_address(text)
    assert (address.host, address.port, address.loopback, str(address)) == (host, port, loopback, text)


@pytest.mark.parametrize(("text", "rate"), [("50/s", 50.0), ("0.5/s", 0.5), ("100000/s", 1e5)])
def test_a_rate_is_so_many_a_second(text: str, rate: float) -> None:
    assert units.parse_rate(text) == rate


@pytest.mark.parametrize("value", [50, "50", "50/m", "0/s", "0.01/s", "100001/s", "-1/s", None, True])
def test_what_is_no_rate_is_told_what_one_looks_like(value: object) -> None:
    with pytest.raises(ValueError, match=r"^expected a rate "):
        units.parse_rate(value)


@pytest.mark.parametrize("value", [":8080", "host", "host:99999", "host:x", "::1:80", "a b:80", 8080, None])
def test_what_is_no_address_is_told_what_one_looks_like(value: object) -> None:
    with pytest.raises(ValueError, match=r"^expected HOST:PORT "):
        units.parse_address(value)


@given(
    st.one_of(st.text(), st.integers(), st.floats(), st.none(), st.booleans(), st.lists(st.integers())),
    st.sampled_from(
        [
            units.parse_duration,
            units.parse_share,
            units.parse_size,
            units.parse_address,
            units.parse_positive_share,
            units.parse_rate,
        ]
    ),
)
def test_any_value_is_read_or_gets_a_sentence(value: object, parse: object) -> None:
    try:
        parse(value)  # type: ignore[operator]
    except ValueError as error:
        assert str(error).startswith("expected ")
