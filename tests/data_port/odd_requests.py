"""Requests and answers that nobody writes and somebody sends, for tests that hold two ways against each other."""

from __future__ import annotations

import json
from dataclasses import dataclass

from hypothesis import strategies as st

from tests.data_port.test_straight import CUT, END, OK, Piece, answer, chunked
from tests.fixtures.upstream import chunk, completion

EARLY = "early"  # the first piece of an answer that does not wait for the body of its request
SPACE = st.sampled_from(["", "", "", " ", "\n", "\t ", "\r\n"])
MODELS = ["m", "m", "kept", "plain", "alias-1", "budgeted", "K\u00e9pt", ""]
WORDS = ["hi", "", '"model":"kept"', "\\u0068i", "\\ud83d\\ude00", "\\ud800", "\\n\\\\\\/", "\u2028", "\u00e9", "\x7f"]
NUMBERS = [
    "0", "-0", "1.50", "1e3", "1E+2", "1e999", "-1e-999", "9007199254740993", "18446744073709551616", "0.1e1", "01",
    "1.", "+1", "NaN", "Infinity", "-Infinity", "0x1",
]  # fmt: skip
OTHERS = ["true", "false", "null", "True", "[]", "{}", "[" * 1100, "'a'"]


def quoted(text: str) -> str:
    """`text` may be escaped already."""
    return f'"{text}"' if "\\" in text else json.dumps(text, ensure_ascii=False)


SCALARS = st.sampled_from([*map(quoted, WORDS), *NUMBERS, *OTHERS])


@st.composite
def objects(draw: st.DrawFn, values: st.SearchStrategy[str], names: st.SearchStrategy[str]) -> str:
    """Any name may come twice."""
    members = draw(st.lists(st.tuples(names, values), max_size=3))
    pairs = [f"{draw(SPACE)}{quoted(name)}{draw(SPACE)}:{draw(SPACE)}{value}{draw(SPACE)}" for name, value in members]
    return "{" + ",".join(pairs) + "}"


NAMES = st.sampled_from(["model", "mod\\u0065l", "stream", "role", "content", "x", "", "messages", "max_tokens"])
VALUES = st.recursive(
    SCALARS,
    lambda inner: objects(inner, NAMES) | st.lists(inner, max_size=3).map(lambda each: "[" + ",".join(each) + "]"),
    max_leaves=4,
)
TURN = st.sampled_from(WORDS).map(lambda text: f'{{"role":"user","content":{quoted(text)}}}')
ODD_TURN = VALUES | st.sampled_from([
    '{"model":"kept","role":"user","content":"hi"}',
    '{"role":"user","content":[{"type":"text","text":"hi"}]}',
    '{"role":"user","content":null}',
])  # fmt: skip


@st.composite
def bodies(draw: st.DrawFn) -> bytes:
    """Of a chat as a rule."""
    turns = draw(st.lists(TURN, min_size=1, max_size=3) | st.lists(ODD_TURN, max_size=2))
    members = [("messages", "[" + ",".join(turns) + "]"), ("model", quoted(draw(st.sampled_from(MODELS))))]
    if draw(st.integers(0, 3)) == 0:
        members.append(draw(st.tuples(NAMES, VALUES)))
    if draw(st.integers(0, 3)) == 0:
        named = ["stream", "max_tokens", "max_completion_tokens", "temperature", "n", "user"]
        members.append((draw(st.sampled_from(named)), draw(SCALARS)))
    members = draw(st.permutations(members))
    text = ",".join(f"{draw(SPACE)}{quoted(name)}{draw(SPACE)}:{draw(SPACE)}{value}" for name, value in members)
    body = f"{draw(SPACE)}{{{text}{draw(SPACE)}}}{draw(SPACE)}".encode("utf-8", "surrogatepass")
    return draw(st.sampled_from(WRAPS)).replace(b"$", body)


WRAPS = [b"$"] * 24 + [b"\xef\xbb\xbf$", b"$x", b"$\x00", b"[$]", b'"', b"", b"null", b"$,", b"\xff$", b"$$", b"\x0c$"]
TARGETS = [
    *[b"/v1/chat/completions"] * 8, b"/v1/completions", b"/v1/embeddings", b"/v1/chat/completions?a=%20&b",
    b"/v1/chat/completions/", b"/v1//chat/completions", b"/v1/chat%2Fcompletions", b"/V1/chat/completions",
    b"/v1/rerank", b"/v1/rerank?model=kept", b"/", b"/v1/models", b"/v1/models/m", b"/v1/modelsx", b"/v1/%zz",
    b"/v1/../v1/chat/completions", b"/v1/messages", b"/healthz", b"http://x/v1/chat/completions", b"*", b"/a?b?c#d",
    b"/v1/feedback", b"/v1/jobs/x",
]  # fmt: skip
VERBS = [b"POST"] * 10 + [b"GET", b"PUT", b"DELETE", b"PATCH", b"HEAD", b"OPTIONS", b"post", b"QUERY"]
FIELDS = [
    b"Authorization: Bearer k", b"Authorization: bearer  k", b"X-Api-Key: z", b"Cookie: a=b", b"OpenAI-Project: p",
    b"X-Team: blue", b"X-Team: Blue", b"x-priority: low", b"x-latency-budget-ms: 50000", b"x-slo-ttft-ms: soon",
    b"Cache-Control: no-store", b"Cache-Control: max-age=0", b"Cache-Control: ONLY-IF-CACHED", b"Cache-Control: ,",
    b"Cache-Tag: a, b", b"x-request-id: mine", b'x-request-id: "', b"x-request-id: " + b"a" * 300,
    b"traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", b"traceparent: x", b"tracestate: a=b",
    b"baggage: a", b"x-stainless-retry-count: 2", b"Accept: text/event-stream", b"Accept-Encoding: gzip, br",
    b"Content-Type: application/json", b"Content-Type: text/plain", b"Content-Type:", b"Content-Encoding: identity",
    b"Content-Encoding: gzip", b"Connection: keep-alive", b"Connection: close", b"Connection: X-Team, keep-alive",
    b"Connection:", b"Keep-Alive: 3", b"TE: trailers", b"Trailer: X-T", b"Upgrade: h2c", b"Expect: 100-continue",
    b"Expect: x", b"Range: bytes=0-1", b"If-None-Match: *", b"Via: 1.1 x", b"X-Forwarded-For: 1.2.3.4",
    b"X-NearHit-Route: plain", b"x-a:b", b"x-a:  b\t ", b"x-a:", b"X_A: b", b"x-a: b:c", b"x-a: \xe9", b"x-a: \x01",
    b"Host: other", b"Proxy-Connection: close", b"Pragma: no-cache", b"Content-Length: 0", b"X Y: z", b": z", b" z: a",
]  # fmt: skip


@st.composite
def heads(draw: st.DrawFn) -> bytes:
    """Method, target, fields; without their end."""
    start = draw(st.sampled_from(VERBS)) + b" " + draw(st.sampled_from(TARGETS)) + b" HTTP/1.1"
    fields = draw(st.lists(st.sampled_from(FIELDS), max_size=3))
    if fields and draw(st.integers(0, 7)) == 0:
        fields.append(fields[0])
    lines = [draw(st.sampled_from(LETTERS))(field) for field in fields]
    lines.insert(draw(st.integers(0, len(lines))), draw(st.sampled_from([b"Host: g"] * 8 + [b"host:g", b"X: y"])))
    return b"\r\n".join([start, *lines])


def as_it_is(field: bytes) -> bytes:
    return field


def in_capitals(field: bytes) -> bytes:
    name, colon, value = field.partition(b":")
    return name.upper() + colon + value


def in_small_letters(field: bytes) -> bytes:
    name, colon, value = field.partition(b":")
    return name.lower() + colon + value


LETTERS = [as_it_is, as_it_is, in_capitals, in_small_letters]


KEPT = [
    b"Authorization: Bearer k",
    b"x-request-id: mine",
    b"traceparent: x",
    b"Connection: keep-alive",
    b"X-Team: blue",
]


@st.composite
def usual(draw: st.DrawFn) -> bytes:
    """A chat as clients send it."""
    lines = [b"POST /v1/chat/completions HTTP/1.1", b"Host: g", *draw(st.lists(st.sampled_from(KEPT), max_size=2))]
    fields = {"model": draw(st.sampled_from(["m", "kept", "kept", "plain", "alias-1"])), "messages": []}
    fields["messages"] = [{"role": "user", "content": draw(st.sampled_from(["hi", "\u00e9", '"model":"m"']))}]
    if draw(st.integers(0, 3)) == 0:
        fields["stream"] = True
    body = json.dumps(fields, ensure_ascii=draw(st.booleans())).encode()
    return b"\r\n".join([*lines, b"Content-Length: %d" % len(body)]) + b"\r\n\r\n" + body


@st.composite
def odd(draw: st.DrawFn) -> bytes:
    head, body, how = draw(heads()), draw(bodies()), draw(st.integers(0, 15))
    if how == 0:
        return head + b"\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n\r\n" % (len(body) or 1, body or b"x")
    if how == 1:
        return head + b"\r\n\r\n"
    if how == 2:
        return head + b"\r\ncontent-length:0%d \r\n\r\n%b" % (len(body), body)
    return head + b"\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)


def requests() -> st.SearchStrategy[bytes]:
    return usual() | odd()


SSE = b"data: {}\n\ndata: [DONE]\n\n"
EVENTS = answer(SSE, kind=b"text/event-stream")
STATUSES = [b"201 Created", b"204 No Content", b"304 Not Modified", b"400 Bad", b"401 No", b"404 None", b"429 Slow",
            b"500 Oops", b"503 Busy", b"200 ", b"200", b"299 Odd", b"999 Odd", b"100 Continue"]  # fmt: skip
RETURNED = [
    b"Keep-Alive: timeout=9", b"Server: x", b"Date: y", b"Age: 3", b"X-NearHit-A: b", b"x-request-id: u",
    b"Set-Cookie: a", b"set-cookie: b", b"Connection: close", b"Connection: X-Gone", b"X-Gone: 1", b"Cache-Status: x",
    b"Content-Encoding: gzip", b"Cache-Control: no-store", b"ETag: a", b"X-\xe9: 1", b"x-a: \xe9\xff", b"x-a:\tb \t",
    b"Content-Type: text/event-stream", b"content-length: 3", b"Transfer-Encoding: gzip", b"Upgrade: x",
    b"x-ratelimit-remaining-requests: 0", b"Retry-After: 1", b"Location: /x", b"Trailer: X-T", b"a b: c", b"x-a",
]  # fmt: skip
CALL = {"model": "m"}
WHOLE = json.dumps(completion(CALL, "hi there")).encode()  # may be stored
STREAM = chunk(CALL, {"role": "assistant", "content": "hi"}) + chunk(CALL, {}, "stop") + b"data: [DONE]\n\n"
PLAIN, STREAMED = answer(WHOLE), answer(STREAM, kind=b"text/event-stream")
ONES: list[list[Piece]] = [
    [PLAIN], [chunked(OK)], [PLAIN[:30], PLAIN[30:]], [PLAIN[:-20], PLAIN[-20:]],
    [chunked(OK)[:-30], chunked(OK)[-30:]],
    [b"HTTP/1.1 103 Early Hints\r\nLink: a\r\n\r\n" + PLAIN], [b"HTTP/1.1 100 Continue\r\n\r\n", PLAIN],
    [b"HTTP/1.1 100 Continue\r\n\r\n" * 20 + PLAIN], [PLAIN + PLAIN], [PLAIN, PLAIN], [PLAIN + b"\r\n"],
    [b"\r\n" + PLAIN], [EARLY, PLAIN], [EARLY, PLAIN, END], [PLAIN, END], [PLAIN[:20], CUT], [PLAIN[:20], END],
    [PLAIN[:-5], CUT], [PLAIN[:-5], END], [END], [CUT], [b"garbage\r\n\r\n"], [b"\x00" * 40],
    [b"HTTP/1.0 200 OK\r\n\r\n", OK, END],
    [b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n" + OK, END], [b"HTTP/2 200\r\n\r\n", END],
    [answer(b"")], [answer(b"oops", kind=b"text/plain")], [EVENTS], [EVENTS[:-20], EVENTS[-20:]], [answer(b"[1")],
    [answer(b'"' + b"x" * 70_000 + b'"')], [chunked(OK).replace(b"\r\n\r\n", b"\r\n", 1)],
    [PLAIN.replace(b"\r\n", b"\n")], [chunked(OK).replace(b"0\r\n\r\n", b"0\r\nX-T: 1\r\n\r\n")],
    [PLAIN.replace(b"HTTP/1.1", b"HTTP/1.0"), END], [PLAIN.replace(b"HTTP/1.1", b"HTTP/1.0\r\nConnection: keep-alive")],
]  # fmt: skip


LASTING = [one for one in ONES if not {END, CUT, EARLY} & {*one} and one.count(PLAIN) < 2]


@st.composite
def answers(draw: st.DrawFn) -> list[Piece]:
    """After which the connection is as it was, or the gateway ends it."""
    if draw(st.booleans()):
        return draw(st.sampled_from([[PLAIN], [PLAIN], [STREAMED], [answer(OK)]]))
    if draw(st.booleans()):
        return draw(st.sampled_from(LASTING))
    fields = draw(st.lists(st.sampled_from(RETURNED), max_size=3))
    body = draw(st.sampled_from([OK, OK, b"", b"{}", b"\x00\xff"]))
    status = draw(st.sampled_from([b"200 OK"] * 6 + STATUSES))
    whole = answer(body, *fields, status=status)
    if status.startswith(b"1"):  # not the answer yet: alone it would be waited for as long as the gateway waits
        whole += PLAIN
    if draw(st.booleans()):
        at = draw(st.integers(1, len(whole) - 1))
        return [whole[:at], whole[at:]]
    return [whole]


@dataclass(frozen=True, slots=True)
class Conversation:
    """What is sent on one connection, in pieces, and how the upstream answers what comes of it, in order."""

    pieces: tuple[bytes, ...]
    script: tuple[tuple[Piece, ...], ...]


def cut(draw: st.DrawFn, whole: bytes) -> list[bytes]:
    cuts = sorted(draw(st.sets(st.integers(1, len(whole) - 1), max_size=4)))
    return [whole[a:b] for a, b in zip([0, *cuts], [*cuts, len(whole)], strict=True)]


@st.composite
def single(draw: st.DrawFn) -> Conversation:
    """One request, and an upstream that does anything, again and again where it is asked again. It comes whole: what
    comes behind its head streams through aiohttp, and is not sent a second time."""
    script = draw(st.lists(answers() | st.sampled_from(ONES), min_size=1, max_size=3))
    return Conversation((draw(requests()),), tuple(map(tuple, script)))


@st.composite
def several(draw: st.DrawFn) -> Conversation:
    """Requests one after the other, some again and again, whether or not the one before has been answered. The upstream
    closes no connection: whether the next request has gone out on it by then is a matter of time."""
    different = draw(st.lists(requests(), min_size=1, max_size=3))
    asked = draw(st.lists(st.sampled_from(different), min_size=1, max_size=6))
    pieces = asked if draw(st.booleans()) else cut(draw, b"".join(asked))
    script = draw(st.lists(answers(), max_size=3))
    return Conversation(tuple(pieces), tuple(map(tuple, script)))


SINGLE, SEVERAL = single(), several()
