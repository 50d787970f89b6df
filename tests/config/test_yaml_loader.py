"""YAML within bounds, with lines."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.config.errors import ConfigInvalid
from gateway.config.yaml_loader import MAX_BYTES, YamlSource, load_yaml


def read(text: str | bytes, environ: dict[str, str] | None = None) -> YamlSource:
    return load_yaml(text if isinstance(text, bytes) else text.encode(), "file.yaml", environ)


def refused(text: str | bytes) -> str:
    with pytest.raises(ConfigInvalid) as caught:
        read(text)
    (fault,) = caught.value.faults
    return str(fault)


def test_scalars_are_what_yaml_says_and_durations_stay_text() -> None:
    source = read("a: 24h\nb: 8\nc: off\nd: 0.5\ne: 1%\nf: 2024-01-01\ng:\nh: 127.0.0.1:80\ni: '8'\n")
    assert source.value == {
        "a": "24h", "b": 8, "c": False, "d": 0.5, "e": "1%", "f": "2024-01-01", "g": None,
        "h": "127.0.0.1:80", "i": "8",
    }  # fmt: skip


def test_a_value_is_found_at_the_line_and_column_of_its_key() -> None:
    source = read("a:\n  - x: 1\n    yy: {z: 2}\n")
    assert source.locate(("a", 0, "yy")) == (3, 5)
    assert source.locate(("a", 0, "yy", "z")) == (3, 10)
    assert source.locate(("a", 0)) == (2, 5)
    assert source.locate(("a", 0, "missing", "below")) == (2, 5)
    assert source.locate(("nowhere",)) == (1, 1)


def test_anchors_and_merges_are_written_out_and_own_keys_win() -> None:
    source = read("base: &base {p: 1, q: 2}\nover: {q: 3, <<: *base}\nlist: {<<: [*base, {p: 9, z: 1}]}\n")
    assert source.value["over"] == {"p": 1, "q": 3}
    assert source.value["list"] == {"p": 1, "q": 2, "z": 1}
    assert source.locate(("list", "p"))[0] == 1


def test_an_alias_bomb_is_refused() -> None:
    lines = ["a: &a [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"{new}: &{new} [{', '.join([f'*{old}'] * 10)}]" for old, new in zip("abcdefg", "bcdefgh", strict=True)]
    assert refused("\n".join(lines)).endswith("more than 20000 values with all anchors expanded, expected fewer")


def test_a_merge_bomb_is_refused() -> None:
    keys = ", ".join(f"k{i}: 1" for i in range(1000))
    assert "more than 20000 values" in refused(f"a: &a {{{keys}}}\nb:\n  <<: [{', '.join(['*a'] * 1000)}]")


def test_too_many_values_are_refused_before_all_are_read() -> None:
    assert "more than 20000 values" in refused("".join(f"k{i}: 1\n" for i in range(15_000)))


@pytest.mark.parametrize("text", ["a: " + "[" * 200_000, "? " * 200_000, "- " * 200_000])
def test_depth_is_bounded(text: str) -> None:
    assert refused(text).endswith("more than 32 levels deep, expected fewer")


def test_depth_is_bounded_through_anchors() -> None:
    nested = "[" * 20 + "1" + "]" * 20
    inner = "[" * 20 + "*a" + "]" * 20
    assert "more than 32 levels deep" in refused(f"a: &a {nested}\nb: {inner}")


@pytest.mark.parametrize("text", ["a: &a [*a]", "a: &a {b: *a}", "a: &a\n  <<: *a"])
def test_an_anchor_that_contains_itself_is_refused(text: str) -> None:
    assert refused(text) == "file.yaml:1: (document): an anchor contains itself, expected an anchor without a cycle"


def test_a_second_anchor_of_one_name_is_refused() -> None:
    fault = "file.yaml:2: (document): not valid YAML: found duplicate anchor 'x', expected another name"
    assert refused("a: &x 1\nb: &x 2") == fault


def test_size_is_bounded() -> None:
    assert refused("#" * (MAX_BYTES + 1)) == (
        "file.yaml:1: (document): larger than 1048576 bytes, expected a smaller file"
    )


def test_invalid_utf8_is_refused_at_its_line() -> None:
    assert refused(b"a: 1\r\nb: \xff\n") == "file.yaml:2: (document): invalid UTF-8 at byte 9, expected UTF-8 text"


def test_a_control_character_is_refused_at_its_line() -> None:
    assert refused("a: 1\nb: \x07") == (
        "file.yaml:2: (document): character U+0007 is not allowed, expected printable text"
    )


def test_a_byte_order_mark_is_no_fault() -> None:
    assert read(b"\xef\xbb\xbfa: 1\n").value == {"a": 1}


def test_a_duplicate_key_is_a_fault_and_the_rest_is_read() -> None:
    source = read("a:\n  b: 1\n  c: 2\n  b: 3\n")
    assert [str(fault) for fault in source.faults] == [
        "file.yaml:4: a.b: duplicate key, expected only the one on line 2"
    ]
    assert source.value == {"a": {"b": 1, "c": 2}}


@pytest.mark.parametrize("number", ["1" * 65, "0x" + "f" * 100_000, "1" + ":0" * 100_000, "0b_"])
def test_a_number_beyond_reason_is_a_fault(number: str) -> None:
    (fault,) = read(f"a: {number}").faults
    assert fault.message.startswith("expected a ")


@pytest.mark.parametrize("text", ['a: "\\UFFFFFFFF"', "%YAML 1." + "9" * 5000 + "\n--- {a: 1}", "a: !<%zz> b"])
def test_what_the_parser_stumbles_over_is_a_syntax_fault(text: str) -> None:
    assert "not valid YAML: " in refused(text)


@pytest.mark.parametrize(
    ("text", "hint"),
    [("a: {b: *}", 'begins with * in quotes, e.g. "gpt-*"'), ("a: {b: ${X}}", 'braces in quotes, e.g. "${NAME}"')],
)
def test_what_is_text_and_reads_as_syntax_is_to_be_put_in_quotes(text: str, hint: str) -> None:
    assert refused(text).endswith(hint)


def test_variables_are_replaced() -> None:
    source = read("a: http://${HOST}:${PORT}\nb: ${PORT}\nc: '${PORT}'\nd: $${HOST}\n", {"HOST": "h", "PORT": "80"})
    assert source.value == {"a": "http://h:80", "b": 80, "c": "80", "d": "${HOST}"}


def test_a_variable_cannot_bring_structure_with_it() -> None:
    assert read("a: ${X}\nb: '${X}'", {"X": "{y: 1}, z: ${X}"}).value == dict.fromkeys("ab", "{y: 1}, z: ${X}")
    (fault,) = read("a: ${X}", {"X": "1\nz: 2"}).faults
    assert fault.message.startswith("the environment variable X has the control character U+000A")


def test_a_missing_variable_is_named() -> None:
    (fault,) = read("a:\n  b: x${HOST}", {}).faults
    assert str(fault) == "file.yaml:2: a.b: the environment variable HOST is not set, expected a value for it"


def test_what_came_from_a_variable_is_not_repeated() -> None:
    source = read("key: '${KEY}'", {"KEY": "s3cret"})
    assert source.fault(("key",), "expected a thing, got 's3cret'").message == "expected a thing, got '${KEY}'"


@settings(max_examples=300, deadline=None)
@given(st.one_of(st.text(alphabet="ab01:.-_ \n\t[]{},&*!?|>%@#'\"\\<=~$x", max_size=60), st.binary(max_size=60)))
def test_any_bytes_are_read_or_refused(content: str | bytes) -> None:
    try:
        source = read(content, {})
    except ConfigInvalid as invalid:
        assert all(str(fault).isprintable() for fault in invalid.faults)
    else:
        assert isinstance(source.value, dict)
        assert all(str(fault).isprintable() for fault in source.faults)
