"""Bodies that no client should send: each is a 4xx in OpenAI's error shape, costs the upstream nothing and the next
request on the same connection nothing either."""

from __future__ import annotations

import gzip
import json
import sys
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import product
from typing import Any

import brotli
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.fixtures.gateways import Answer, Served
from tests.fixtures.upstream import Upstream
from tests.fixtures.wire import Message, Wire

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

CHAT, COMPLETIONS, EMBEDDINGS = "/v1/chat/completions", "/v1/completions", "/v1/embeddings"
SAY = [{"role": "user", "content": "hi"}]
GOOD: dict[str, Any] = {"model": "m", "messages": SAY}
MAX_BODY = 10 * 2**20  # server.max_body by default


def chat(**fields: Any) -> bytes:
    return json.dumps({**GOOD, **fields}).encode()


MALFORMED = {
    "empty": b"",
    "whitespace": b" \n ",
    "not JSON": b"model=m",
    "cut short": chat()[:-1],
    "more behind it": chat() + b"{}",
    "trailing comma": b'{"model": "m",}',
    "an array": b"[]",
    "a string": b'"m"',
    "null": b"null",
    "a number": b"1",
    "invalid UTF-8": chat(model="X").replace(b"X", b"\xff\xfe"),
    "overlong UTF-8": chat(model="X").replace(b"X", b"\xc0\xaf"),
    "UTF-16": json.dumps(GOOD).encode("utf-16"),
    "two byte order marks": b"\xef\xbb\xbf" * 2 + chat(),
    "a lone surrogate": chat(model="X").replace(b"X", rb"\ud800"),
    "NaN": chat(temperature=float("nan")),
    "Infinity": chat(top_p=float("inf")),
    "10,000 arrays": chat(x="X").replace(b'"X"', b"[" * 10_000 + b"]" * 10_000),
    "10,000 objects": chat(x="X").replace(b'"X"', b'{"a":' * 10_000 + b"1" + b"}" * 10_000),
    "500 arrays": chat(x="X").replace(b'"X"', b"[" * 500 + b"]" * 500),
    "500 objects": chat(x="X").replace(b'"X"', b'{"a": ' * 500 + b"1" + b"}" * 500),
    "a key twice": b'{"model": "m", "model": "n", "messages": [{"role": "user", "content": "hi"}]}',
    "a key twice, inside": b'{"model": "m", "messages": [{"role": "user", "role": "system", "content": "hi"}]}',
    "a key twice, escaped": b'{"model": "m", "mod\\u0065l": "n", "messages": [{"role": "user", "content": "hi"}]}',
    "a control character": b'{"model": "m\x00"}',
}
WRONG_TYPES: dict[str, Any] = {
    "model": [None, 1, "", ["m"], {}],
    "messages": [None, "hi", [], {}, [None], ["hi"], [{}], [{"role": 1}], [[]]],
    "messages.content": [1, True, {"type": "text"}, ["hi"], [{"type": "text"}], [{"type": "text", "text": 1}], [None]],
    "stream": [1, 0, "true", [], {}],
    "stream_options": [True, "x", []],
    "user": [1, [], {}, True],
    "max_tokens": [1.5, "1", True, []],
    "max_completion_tokens": [0.5, "many"],
    "n": [0, -1, 0.5, "1", True],
    "temperature": ["1", True, []],
}


def with_field(field: str, value: Any) -> bytes:
    if field == "messages.content":
        return chat(messages=[{"role": "user", "content": value}])
    return chat(**{field: value})


def refused(answer: Answer, *, status: int = 400) -> dict[str, Any]:
    """The error object of an answer, checked for OpenAI's shape."""
    assert answer.status == status, answer.body[:300]
    assert answer.headers["Content-Type"] == "application/json"
    error: dict[str, Any] = answer.json["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert isinstance(error["message"], str)
    assert error["message"]
    assert isinstance(error["type"], str)
    return error


@contextmanager
def case(*case: object) -> Iterator[None]:
    """Name the case of a test that fails. A refusal leaves nothing, so that all cases may have one gateway."""
    try:
        yield
    except AssertionError as error:
        error.add_note(f"case: {case}")
        raise


async def nothing_happened(served: Served, upstream: Upstream) -> None:
    """Nothing went upstream and nothing is stored; and a good request is answered."""
    assert upstream.calls == []
    assert (await served.gateway.parts.store.stats()).entries == 0
    assert (await served.chat("hi")).text == "upstream answers: hi"


async def test_a_malformed_body_is_a_bad_request(served: Served, upstream: Upstream) -> None:
    for (name, body), path in product(MALFORMED.items(), (CHAT, COMPLETIONS, EMBEDDINGS)):
        with case(name, path):
            assert refused(await served.post(path, body))["type"] == "invalid_request_error"
    await nothing_happened(served, upstream)


async def test_every_wrong_type_is_named_with_its_field(served: Served, upstream: Upstream) -> None:
    for field, values in WRONG_TYPES.items():
        for value in values:
            message = refused(await served.post(CHAT, with_field(field, value)))["message"]
            assert field.rpartition(".")[2] in message, (field, value, message)
    await nothing_happened(served, upstream)


async def test_the_other_operations_name_the_field_too(served: Served, upstream: Upstream) -> None:
    for path, body, field in [
        (COMPLETIONS, {"model": "m"}, "prompt"),
        (COMPLETIONS, {"model": "m", "prompt": 1}, "prompt"),
        (COMPLETIONS, {"model": "m", "prompt": {"a": 1}}, "prompt"),
        (EMBEDDINGS, {"model": "m"}, "input"),
        (EMBEDDINGS, {"model": "m", "input": None}, "input"),
        (EMBEDDINGS, {"model": "m", "input": []}, "input"),
        (EMBEDDINGS, {"input": "x"}, "model"),
    ]:
        with case(path, body):
            assert field in refused(await served.post(path, json.dumps(body).encode()))["message"]
    await nothing_happened(served, upstream)


async def test_nesting_is_either_answered_or_refused_at_every_depth(served: Served) -> None:
    """Readers and writers of JSON have limits of their own, and what is put around a body counts too."""
    for depth in (*range(240, 260), 1020, 1030):
        for opening, closing in ((b"[", b"]"), (b'{"a": ', b"}")):
            body = chat(x="X").replace(b'"X"', opening * depth + b"1" + closing * depth)
            assert (await served.post(CHAT, body)).status in (200, 400), depth


@pytest.mark.parametrize("digits", [30, 300, 5000])
async def test_a_long_number_is_not_an_internal_error(served: Served, digits: int) -> None:
    """Python reads no integer of more than 4300 digits. The space makes the check for duplicate keys read it."""
    body = chat(seed="X").replace(b'"X"', b"1" * digits).replace(b'"model":', b'"model" :')
    assert (await served.post(CHAT, body)).status < 500


async def test_a_budget_that_is_no_duration_is_a_bad_request(served: Served, upstream: Upstream) -> None:
    names = ("x-latency-budget-ms", "x-slo-ttft-ms", "x-slo-tpot-ms")
    for name, value in product(names, ("", "soon", "0", "-5", "nan", "inf", "1e99", "1_000 ms", "5, 6")):
        with case(name, value):
            assert name in refused(await served.post(CHAT, chat(), {name: value}))["message"]
    await nothing_happened(served, upstream)


PACK: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress, "x-gzip": gzip.compress, "deflate": zlib.compress, "br": brotli.compress,
    "zstd": zstd.compress, "identity": bytes, "": bytes,
}  # fmt: skip


def packed(body: bytes, encoding: str) -> bytes:
    for coding in encoding.lower().split(","):
        body = PACK[coding.strip()](body)
    return body


CODINGS = ["gzip", "x-gzip", "deflate", "GZIP", "identity", "br", "zstd", "Zstd"]
CHAINS = ["gzip, zstd", "identity,br", "br,,deflate", "gzip,gzip,gzip"]


@pytest.mark.parametrize("encoding", [*CODINGS, *CHAINS])
async def test_a_compressed_body_is_read(served: Served, upstream: Upstream, encoding: str) -> None:
    body = packed(chat(), encoding)
    for verdict in ("fwd=miss", "hit; detail=exact"):
        answer = await served.post(CHAT, body, {"Content-Encoding": encoding})
        assert answer.text == "upstream answers: hi"
        assert verdict in answer.cache_status
    assert "Content-Encoding" not in upstream.calls[0].headers  # it was decoded, and goes on decoded
    assert upstream.calls[0].json["messages"] == SAY


async def test_codings_on_several_lines_are_one_list(wire: Wire, upstream: Upstream) -> None:
    body = zstd.compress(gzip.compress(chat()))
    head = f"POST {CHAT} HTTP/1.1\r\nHost: g\r\nContent-Encoding: gzip\r\nContent-Encoding: zstd\r\n"
    await wire.send(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
    assert (await wire.message()).status == 200
    assert upstream.calls[0].json["messages"] == SAY


async def test_deflate_without_the_header_of_zlib_is_read(served: Served) -> None:
    packer = zlib.compressobj(wbits=-15)
    body = packer.compress(chat()) + packer.flush()
    assert (await served.post(CHAT, body, {"Content-Encoding": "deflate"})).status == 200


async def test_a_coding_that_is_not_read_is_refused_with_those_that_are(served: Served, upstream: Upstream) -> None:
    for encoding in ("compress", "aes128gcm", "gzip, compress", "br;q=1", "zstd,zstd,zstd,zstd"):
        with case(encoding):
            coded = {"Content-Encoding": encoding}
            answer = await served.post(CHAT, chat(), coded)
            refused(answer, status=415)
            assert answer.headers["Accept-Encoding"] == "gzip, deflate, br, zstd"
            anthropic = await served.post("/v1/messages", chat(), {**coded, "anthropic-version": "1"})
            assert (anthropic.status, anthropic.json["type"]) == (415, "error")
    await nothing_happened(served, upstream)


def wide_frame() -> bytes:
    """A zstd frame of a few bytes whose window needs 128 MiB."""
    packer = zstd.ZstdCompressor(options={zstd.CompressionParameter.window_log: 27})
    return packer.compress(chat()) + packer.flush()


def bomb() -> bytes:
    return b" " * (100 * 2**20)


# To pack the large ones takes a second, which the collection of each process would pay.
Packed = bytes | Callable[[], bytes]
WRONG_ENCODINGS: dict[str, tuple[str, Packed, int]] = {
    "not brotli": ("br", b"\x1b\x00", 400),
    "not zstd": ("zstd", chat(), 400),
    "brotli cut short": ("br", brotli.compress(chat())[:-1], 400),
    "zstd cut short": ("zstd", zstd.compress(chat())[:-1], 400),
    "no brotli": ("br", b"", 400),
    "no zstd": ("zstd", b"", 400),
    "two frames": ("zstd", zstd.compress(chat()) + zstd.compress(b" "), 400),
    "garbage behind brotli": ("br", brotli.compress(chat()) + b"garbage", 400),
    "a wide window": ("zstd", wide_frame(), 400),
    "once": ("gzip, gzip", gzip.compress(chat()), 400),
    "a bomb of brotli": ("br", lambda: brotli.compress(bomb(), quality=1), 413),
    "a bomb of zstd": ("zstd", lambda: zstd.compress(bomb(), 1), 413),
    "a bomb of deflate": ("deflate", lambda: zlib.compress(bomb(), 1), 413),
    "a bomb in a bomb": ("gzip, br", lambda: brotli.compress(gzip.compress(bomb(), 1)), 413),
    "one byte too much of brotli": ("br", lambda: brotli.compress(b" " * (MAX_BODY + 1), quality=1), 413),
    "one byte too much of zstd": ("zstd", lambda: zstd.compress(b" " * (MAX_BODY + 1), 1), 413),
    "not gzip": ("gzip", chat(), 400),
    "not deflate": ("deflate", gzip.compress(chat()), 400),
    "nothing": ("gzip", b"", 400),
    "cut short": ("gzip", gzip.compress(chat())[:-9], 400),
    "two members": ("gzip", gzip.compress(chat()) + gzip.compress(b" "), 400),
    "garbage behind it": ("gzip", gzip.compress(chat()) + b"garbage", 400),
    "one byte too much": ("gzip", lambda: gzip.compress(b" " * (MAX_BODY + 1)), 413),
    "a bomb": ("gzip", lambda: gzip.compress(bomb(), 1), 413),
}


async def test_a_compressed_body_that_is_wrong_or_a_bomb_is_refused(served: Served, upstream: Upstream) -> None:
    for name, (encoding, body, status) in WRONG_ENCODINGS.items():
        with case(name):
            packed = body if isinstance(body, bytes) else body()
            refused(await served.post(CHAT, packed, {"Content-Encoding": encoding}), status=status)
    await nothing_happened(served, upstream)


def over_the_wire(body: bytes, *, chunked: bool = False) -> bytes:
    head = f"POST {CHAT} HTTP/1.1\r\nHost: g\r\nContent-Type: application/json\r\n"
    if not chunked:
        return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body
    pieces = [body[i : i + 65536] for i in range(0, len(body), 65536)]
    framed = b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces)
    return f"{head}Transfer-Encoding: chunked\r\n\r\n".encode() + framed + b"0\r\n\r\n"


async def test_a_body_of_exactly_the_limit_is_read(served: Served, wire: Wire) -> None:
    padded = chat() + b" " * (MAX_BODY - len(chat()))
    for chunked in (False, True):
        await wire.send(over_the_wire(padded, chunked=chunked))
        assert (await wire.message()).status == 200
    for coding in ("gzip", "zstd", "br"):
        pack = partial(brotli.compress, quality=1) if coding == "br" else PACK[coding]
        assert (await served.post(CHAT, pack(padded), {"Content-Encoding": coding})).status == 200


@pytest.mark.usefixtures("lingering")
@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize(("body", "status"), [(b"{", 400), (b" " * (MAX_BODY + 1), 413)], ids=["broken", "oversize"])
async def test_the_next_request_on_the_connection_is_answered(
    wire: Wire, upstream: Upstream, body: bytes, status: int, chunked: bool
) -> None:
    """What was refused is read to its end, so that its rest is not taken for a request."""
    await wire.send(over_the_wire(body, chunked=chunked))
    answer: Message = await wire.message()
    assert answer.status == status
    assert set(json.loads(answer.body)["error"]) == {"message", "type", "param", "code"}
    await wire.send(over_the_wire(chat()))
    assert (await wire.message()).status == 200
    assert len(upstream.calls) == 1


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
FIELDS = st.fixed_dictionaries(
    {}, optional=dict.fromkeys(("model", "messages", "prompt", "input", "stream", "n", "user", "max_tokens"), JSON)
)


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(body=st.binary(max_size=200) | FIELDS.map(lambda value: json.dumps(value).encode()), data=st.data())
async def test_no_body_at_all_is_an_internal_error(served: Served, body: bytes, data: st.DataObject) -> None:
    path = data.draw(st.sampled_from([CHAT, COMPLETIONS, EMBEDDINGS]))
    assert (await served.post(path, body)).status < 500
