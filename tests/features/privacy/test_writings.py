"""Personal data is found in the writings of wires, files and people, and numbers that are no data are left alone."""

from __future__ import annotations

import base64
import html
import json
from collections.abc import Callable
from typing import Any, get_args
from urllib.parse import quote

import pytest

from gateway.calls import Call
from gateway.dialects.known import find_dialect
from gateway.features.privacy.personal_data import Kind, find, redact, values_digest
from gateway.outcomes import Bypass
from tests.features.answer_schemas.test_validator import CHAT, MESSAGES, RESPONSES
from tests.features.privacy.test_personal_data import ALL, parsed, rule

VALUES: dict[str, tuple[str, str]] = {
    "email": ("email", "marta.lind+bill@mail.example.com"),
    "card": ("card", "5425233430109903"),
    "grouped card": ("card", "4012 8888 8888 1881"),
    "amex": ("card", "3714 496353 98431"),
    "iban": ("iban", "NL91ABNA0417164300"),
    "grouped iban": ("iban", "FR14 2004 1010 0505 0001 3M02 606"),
    "phone": ("phone", "+31 20 794 0800"),
    "american phone": ("phone", "(628) 555-0143"),
    "ssn": ("ssn", "219-09-9999"),
}


def digits_in(zero: int) -> Callable[[str], str]:
    return lambda text: "".join(chr(zero + int(char)) if char.isdecimal() else char for char in text)


def wide(text: str) -> str:
    return "".join(chr(ord(char) + 0xFEE0) if "!" <= char <= "~" else "\u3000" for char in text)


def escaped(text: str) -> str:
    return "".join(f"\\u{ord(char):04X}" for char in text)


WRITINGS: dict[str, Callable[[str], str]] = {
    "as it is": lambda text: text,
    "within JSON": lambda text: json.dumps({"note": f"Name: Marta\n{text}\n"}),
    "within JSON within JSON": lambda text: json.dumps({"a": json.dumps({"b": f"x\t{text}\r\n"})}),
    "three times JSON": lambda text: json.dumps(json.dumps(json.dumps(f"\n{text}\n"))),
    "escaped": lambda text: escaped(text),
    "an escaped sign": lambda text: text.replace("+", "\\u002b").replace("@", "\\u0040").replace(" ", "\\u0020"),
    "twice escaped": lambda text: escaped(text).replace("\\", "\\\\"),
    "character references": lambda text: "".join(f"&#{ord(char)};" for char in text),
    "hexadecimal references": lambda text: "".join(f"&#x{ord(char):x};" for char in text),
    "HTML": lambda text: f"<p>{html.escape(text)}&nbsp;</p>".replace("@", "&commat;"),
    "an address of the web": lambda text: f"https://x.example/?q={quote(text)}&r=1",
    "a form": lambda text: f"q={quote(text, safe='')}&r=1",
    "fullwidth": wide,
    "Arabic digits": digits_in(0x660),
    "Devanagari digits": digits_in(0x966),
    "mathematical digits": digits_in(0x1D7CE),
    "zero-width spaces": lambda text: "\u200b".join(text),
    "joiners and a soft hyphen": lambda text: f"{text[:4]}\u2060\u00ad{text[4:]}\u200d",
    "a byte order mark": lambda text: f"\ufeff{text}\ufeff",
    "no-break spaces": lambda text: text.replace(" ", "\u00a0").replace("-", "\u2011"),
    "tabs": lambda text: text.replace(" ", "\t"),
    "an em space": lambda text: text.replace(" ", "\u2003").replace("-", "\u2013"),
    "base64": lambda text: base64.b64encode(f"write to {text} now".encode()).decode(),
    "base64 for URLs": lambda text: base64.urlsafe_b64encode(f'{{"sub": "{text}"}}'.encode()).decode().rstrip("="),
    "brackets": lambda text: f"<{text}>[{text}]({text})",
}
OTHERS = {
    "at and dot": ("email", "marta (at) mail [dot] example [dot] com"),
    "at": ("email", "marta[at]example.com"),
    "an address of a host": ("email", "marta@[192.0.2.17]"),
    "quotation marks": ("email", '"marta lind"@example.com'),
    "a link": ("email", "mailto:marta@example.com?subject=x"),
    "a sign of another block": ("email", "marta\ufe6bexample\u2024com"),
    "dots": ("card", "5425.2334.3010.9903"),
    "underscores": ("card", "5425_2334_3010_9903"),
    "slashes": ("card", "5425/2334/3010/9903"),
    "wide hyphens": ("card", "5425 - 2334 - 3010 - 9903"),
    "two spaces": ("card", "5425  2334  3010  9903"),
    "lines": ("card", "5425\n2334\n3010\n9903"),
    "lines of Windows": ("card", "5425\r\n2334\r\n3010\r\n9903"),
    "emphasis": ("card", "_5425233430109903_"),
    "pairs": ("card", "54 25 23 34 30 10 99 03"),
    "single digits": ("card", "5 4 2 5 2 3 3 4 3 0 1 0 9 9 0 3"),
    "key caps": ("card", "".join(f"{digit}\ufe0f\u20e3" for digit in "5425233430109903")),
    "circled digits": ("card", "5425 2334 3010 990\u2462"),
    "dots of an amex": ("card", "3714.496353.98431"),
    "dots of an IBAN": ("iban", "NL91.ABNA.0417.1643.00"),
    "lines of an IBAN": ("iban", "FR14 2004 1010\n0505 0001 3M02 606"),
    "a space in the country": ("iban", "NL 91 ABNA 0417 1643 00"),
    "an escaped country code": ("phone", "\\u002B31207940800"),
    "dots of a phone": ("phone", "+31.20.794.0800"),
    "middle dots": ("phone", "+31\u00b720\u00b7794\u00b70800"),
    "a name": ("phone", "phone: 6285550143"),
    "a name in JSON": ("phone", '{"phone_number": "6285550143"}'),
    "a name of an ssn": ("ssn", '{"user_ssn": "219099999"}'),
    "an ssn with dots": ("ssn", "SSN: 219.09.9999"),
}


@pytest.mark.parametrize("writing", WRITINGS.values(), ids=WRITINGS)
@pytest.mark.parametrize(("kind", "value"), VALUES.values(), ids=VALUES)
def test_each_writing_is_found(kind: Kind, value: str, writing: Callable[[str], str]) -> None:
    text = writing(value)
    for around in (text, f"Please check {text}, thank you."):
        found = find(around, ALL)
        assert {each.kind for each in found} == {kind}
        assert f"<{kind}>" in redact(around, found)


@pytest.mark.parametrize(("kind", "text"), OTHERS.values(), ids=OTHERS)
def test_each_other_writing_is_found(kind: Kind, text: str) -> None:
    assert [each.kind for each in find(f"It is {text}, I think.", ALL)] == [kind]


@pytest.mark.parametrize("name", ["escaped", "zero-width spaces", "character references", "fullwidth", "an em space"])
@pytest.mark.parametrize(("kind", "value"), VALUES.values(), ids=VALUES)
def test_a_redaction_takes_the_writing_and_nothing_else(kind: Kind, value: str, name: str) -> None:
    before, behind = "\u00fcber\u200b \ufb01x 50% \\n\u2026 ", " \u200b\U0001f600 &amp; \\u0041 end"
    text = before + WRITINGS[name](value) + behind
    assert redact(text, find(text, ALL)) == before + f"<{kind}>" + behind


@pytest.mark.parametrize("value", ["5425 2334 3010 9903", "marta@example.com", "+31 20 794 0800"])
def test_all_writings_of_a_value_are_one_value(value: str) -> None:
    names = ("as it is", "escaped", "zero-width spaces", "fullwidth", "no-break spaces", "tabs", "character references")
    assert len({values_digest(find(WRITINGS[name](value), ALL)) for name in names}) == 1


HARMLESS = [
    *("order 5425233430109904", "invoice 2024-000317-88", "PO#4500123456", "ticket 30010045", "SKU 4012-88-18"),
    *("version 10.15.7", "v2.33.1-rc.4", "numpy==1.26.4", "node 20.11.0", "build 14.2.1 (23C71)", "ES2015.4.1"),
    *("2024-11-28T17:04:05.123456Z", "28.11.2024 17:04", "1732813445", "1732813445123", "1732813445123456789"),
    *("17:04:05.000000001", "11/28/2024 - 12/01/2024", "20241128170405", "2024 2025 2026 2027", "28 11 2024 17 04"),
    *("d41d8cd98f00b204e9800998ecf8427e", "sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"),
    *("commit e3d960f05c2a", "550e8400-e29b-41d4-a716-446655440000", "0x5425233430109903", "ETag W/5425-2334"),
    *("$1,299.00", "EUR 4.012,88", "\u20ac 1 234 567,89", "12 % of 3 400", "5425.23 + 3430.10 = 8855.33", "1e-12"),
    *("192.0.2.17", "192.168.10.254/24", "2001:db8::8a2e:370:7334", "00:1b:44:11:3a:b7", "127.0.0.1:8080"),
    *("52.3676, 4.9041", "52.367573,4.904139", "1920x1080", "3840 x 2160", "pi 3.141592653589793", "6.02214076e23"),
    *("ISBN 978-0-306-40615-7", "ISSN 2049-3630", "RFC 9112", "ISO 8601", "DIN EN 61000-4-2", "BIC DEUTDEFF500"),
    *("[1, 2, 3, 4, 5, 6, 7, 8, 9]", "1 2 3 4 5 6 7 8 9 10 11 12 13", "0.12 0.55 0.91 0.04", "4000, 3000, 2000, 1000"),
    *("4000 | 3000 | 2000 | 1000", "10\n20\n30\n40\n50", "5 10 15 20 25 30 35", "3 1 4 1 5 9 2 6"),
    *("@media (max-width: 600px)", "git@localhost", "@app.route", "user@host:/srv", "arr[at]", "meet (at) noon", "a@b"),
    *("C:\\new\\table\\4012", "\\u00e9t\\u00e9", "50%", "100%25", "&lt;b&gt;12&lt;/b&gt;", "AT&T 2024", "\\d{3}-\\d"),
    *("chapter 3.2.1, page 219", "room 219-09", "flight KL 1001", "bus 31 20", "size 42-44", "score 3-1, 2-2"),
    *("GB 2024 12 31 report", "NO 12 eggs", "in 15 minutes at 12", "it 100 times", "MT4 and MT5", "FR 10 of 12"),
    *("phone 15 pro max 256", "telephone exchange 1876", "cell 12 of table 4", "fax machine 1998", "mobile: 5G"),
    *("eyJ0ZXN0IjoxMjN9", "SGVsbG8sIHdvcmxkIQ==", "aGFybWxlc3MgdGV4dCB3aXRoIDEyMw", "AAAAAAAAAAAAAAAAAAAA"),
    *("\u0661\u0662\u0663", "\u2462 of \u2467", "x\u00b2 + y\u00b2", "H\u2082O", "\u00bd cup", "\u0967\u0968\u0969"),
    *("port 65535", "exit code 137", "HTTP 429", "id 4821", "1,234,567,890 people", "24/7", "9-to-5", "007", "9/11"),
]  # fmt: skip


@pytest.mark.parametrize("text", HARMLESS)
def test_harmless_texts_have_none(text: str) -> None:
    for written in (text, f"Please check {text} for me.", json.dumps({"note": f"x\n{text}\n"})):
        assert find(written, ALL) == ()


CARD, PHONE = 5425233430109903, 31207940800
BODIES: dict[str, tuple[str, dict[str, Any]]] = {
    "a number of a tool call": (
        MESSAGES,
        {"messages": [{"role": "assistant", "content": [{"type": "tool_use", "name": "pay", "input": {"no": CARD}}]}]},
    ),
    "a float": (CHAT, {"messages": [{"role": "user", "content": "x"}], "extra": {"n": [float(CARD)]}}),
    "a number in a list": (RESPONSES, {"input": "x", "prompt": {"id": "p", "variables": {"n": [1, 2, CARD]}}}),
    "the name of a field": (
        MESSAGES,
        {"messages": [{"role": "user", "content": [{"type": "tool_result", "x": {"marta@example.com": 1}}]}]},
    ),
    "a name that tells the kind": (
        MESSAGES,
        {"messages": [{"role": "assistant", "content": [{"type": "tool_use", "input": {"phone": PHONE}}]}]},
    ),
    "an ssn by its name": (RESPONSES, {"input": "x", "prompt": {"id": "p", "variables": {"ssn": "219099999"}}}),
    "arguments": (
        RESPONSES,
        {"input": [{"type": "function_call", "call_id": "c", "name": "n", "arguments": f'{{"t": "A\\n{CARD}"}}'}]},
    ),
    "a file of text": (
        RESPONSES,
        {"input": [{"role": "user", "content": [
            {"type": "input_file", "file_data": "data:text/csv;base64," + base64.b64encode(
                b"name,mail\n" * 200 + b"marta,marta@example.com\n").decode()}]}]},
    ),
    "a document": (
        MESSAGES,
        {"messages": [{"role": "user", "content": [
            {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": f"card {CARD}"}}]}]},
    ),
    "instructions": (CHAT, {"messages": [{"role": "developer", "content": "Marta is \u200bmarta\uff20example.com"},
                                         {"role": "user", "content": "x"}]}),
    "generate": ("/v2/models/m/generate", {"text_input": "x", "parameters": {"system": "call +31 20 794 0800"}}),
    "a second tensor": (
        "/v2/models/m/infer",
        {"inputs": [
            {"name": "text_input", "datatype": "BYTES", "shape": [1], "data": ["x"]},
            {"name": "system", "datatype": "BYTES", "shape": [1], "data": ["marta@example.com"]}]},
    ),
    "instances": ("/v1/models/m:predict", {"instances": [{"q": ["x"], "card": CARD}]}),
    "a prediction": ("/predictions/m", {"q": f"A\n{CARD}"}),
}  # fmt: skip


@pytest.mark.parametrize(("path", "body"), BODIES.values(), ids=BODIES)
def test_a_bypass_reads_each_value_and_each_name(path: str, body: dict[str, Any]) -> None:
    assert rule("bypass").read(parsed(path, body))[0].uncached is Bypass.PERSONAL_DATA


def test_a_part_of_a_form_is_read() -> None:
    dialect = find_dialect("POST", "/predictions/m")
    assert dialect is not None
    body = b'--b\r\nContent-Disposition: form-data; name="q"\r\n\r\nmarta@example.com\r\n--b--\r\n'
    call = dialect.parse("/predictions/m", body, {"content-type": "multipart/form-data; boundary=b"})
    assert rule("bypass").read(call)[0].uncached is Bypass.PERSONAL_DATA


CLEAN: dict[str, tuple[str, dict[str, Any]]] = {
    "numbers of tokens": ("/v1/embeddings", {"input": [*range(100, 2_000)]}),
    "a tensor": ("/v1/models/m:predict", {"instances": [[0.25, -1.5e9, 3.0] * 2_000]}),
    "a picture": (
        "/predictions/m",
        {"image": base64.b64encode(bytes(range(256)) * 200).decode(), "size": [1920, 1080]},
    ),
    "a plain question": (CHAT, {"messages": [{"role": "user", "content": "order 4821 of 2024?"}], "seed": 1732813445}),
}


@pytest.mark.parametrize(("path", "body"), CLEAN.values(), ids=CLEAN)
def test_a_body_without_personal_data_stays_in_the_caches(path: str, body: dict[str, Any]) -> None:
    call = parsed_alone(path, body)
    assert rule("bypass").read(call) == (call, ())


def parsed_alone(path: str, body: dict[str, Any]) -> Call:
    dialect = find_dialect("POST", path)
    assert dialect is not None
    return dialect.parse(path, json.dumps({"model": "m", **body}).encode(), {})


def test_all_kinds_are_written() -> None:
    assert {kind for kind, _ in VALUES.values()} == set(get_args(Kind)) == set(rule("store").pii)
