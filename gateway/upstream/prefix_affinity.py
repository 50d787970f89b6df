"""Prefer the upstream that saw the longest prefix of a prompt last, because it has the KV cache of it. Pure.

A prompt is cut into blocks, in the order in which providers read it: tools, system prompt, messages. The digest of a
block covers the text from the beginning to the end of the block. Two prompts with an equal digest therefore share that
prefix. The digests also cover the tenant and the model. So the upstream of one tenant's call says nothing about the
prompts of another tenant, and a prompt of one model attracts no call of another model.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from hashlib import blake2b
from typing import Any, Literal

import orjson

from gateway.messages import Call
from gateway.upstream.load_balancer import LoadCandidate, by_rank, first_within_bound

BLOCK_BYTES = 512  # about 128 tokens: an eighth of the shortest prompt that OpenAI and Anthropic cache

MAX_PROMPT_BLOCKS = 512  # 256 KiB of a prompt; later text does not decide

MAX_TABLE_BLOCKS = 65_536  # the blocks that a backend remembers: 32 MiB of prompts in some 13 MB of memory

DIGEST_BYTES = 16

PROMPT_KEYS = ("tools", "functions", "system", "instructions", "messages", "input", "prompt")  # in the providers' order

# Clients move these marks from turn to turn. They change no token of the prompt.
_MARK = re.compile(rb',"cache_control":(?:\{[^{}]*\}|null)|"cache_control":(?:\{[^{}]*\}|null),?')

PrefixOutcome = Literal["warm", "moved", "cold", "preferred"]
"""Why an upstream was picked. `warm`: it saw the longest known prefix. `moved`: that one was busy or out of service.
`cold`: no upstream saw any prefix. `preferred`: the session of the request prefers it."""


def prefix_blocks(call: Call, tenant: str) -> list[bytes]:
    """Return the digests of the prompt's full blocks, shortest prefix first; empty for a prompt shorter than a block.

    If the body has a `prompt_cache_key`, all digests cover it. The first one then covers it alone, so calls with one
    key stay together even if their prompts differ.
    """
    if call.operation == "embeddings":
        return []
    given = call.body.get("prompt_cache_key")
    key = given if isinstance(given, str) and given else None
    root = blake2b(orjson.dumps([tenant, call.model, key]), digest_size=DIGEST_BYTES)
    digests = [] if key is None else [root.digest()]
    text = memoryview(_prompt_bytes(call.body))
    for start in range(0, len(text) - BLOCK_BYTES + 1, BLOCK_BYTES):
        root.update(text[start : start + BLOCK_BYTES])
        digests.append(root.digest())
    return digests


def _prompt_bytes(body: Mapping[str, Any]) -> bytes:
    """Return the beginning of the prompt as bytes. A prompt with more turns begins with the same bytes."""
    pieces, size, limit = [], 0, BLOCK_BYTES * MAX_PROMPT_BLOCKS
    for piece in _pieces(body):
        data = orjson.dumps(piece, default=str)
        if b'"cache_control":' in data:
            data = _MARK.sub(b"", data)
        pieces.append(data)
        size += len(data) + 1
        if size >= limit:
            break
    return b"\n".join(pieces)[:limit]


def _pieces(body: Mapping[str, Any]) -> Iterator[Any]:
    for key in PROMPT_KEYS:
        value = body.get(key)
        if isinstance(value, list):
            yield from value
        elif value:
            yield value


class PrefixTable:
    """`PrefixTable` remembers which upstream saw each block last. It forgets the blocks that were used least recently.

    Nothing expires: an upstream that has lost its cache is as good as any other.
    """

    def __init__(self, max_blocks: int = MAX_TABLE_BLOCKS) -> None:
        self._upstreams: OrderedDict[bytes, str] = OrderedDict()
        self._max_blocks = max_blocks

    def __len__(self) -> int:
        return len(self._upstreams)

    def names(self, blocks: Sequence[bytes]) -> list[str]:
        """Return the upstreams that saw a prefix, the one with the longest first."""
        found: dict[str, None] = {}
        for digest in reversed(blocks):
            name = self._upstreams.get(digest)
            if name is not None:
                found[name] = None
        return list(found)

    def record(self, blocks: Sequence[bytes], name: str) -> None:
        """Record that `name` sees the prompt now. Short prefixes are forgotten after long ones, which they outlive."""
        upstreams = self._upstreams
        for digest in reversed(blocks):
            upstreams[digest] = name
            upstreams.move_to_end(digest)
        while len(upstreams) > self._max_blocks:
            upstreams.popitem(last=False)


def pick_warm(
    blocks: Sequence[bytes], names: Sequence[str], candidates: Sequence[LoadCandidate], preferred: str | None = None
) -> tuple[int, PrefixOutcome]:
    """Return the index of the candidate for a prompt, and the reason.

    `names` saw a prefix of it, longest first: see `PrefixTable.names`. `preferred` comes before them. A candidate whose
    load would exceed twice the least is passed over. If none is left, consistent hashing of the shortest prefix decides
    within the same bound, so that several gateways agree.
    """
    if preferred is not None and (index := first_within_bound((preferred,), candidates)) is not None:
        return index, "preferred"
    index = first_within_bound(names, candidates)
    if index is not None:
        return index, "warm" if candidates[index].name == names[0] else "moved"
    order = [candidates[i].name for i in by_rank(blocks[0], candidates)]
    home = first_within_bound(order, candidates)
    assert home is not None  # the least loaded candidate is within the bound
    return home, "moved" if names else "cold"
