"""Prefer the upstream that saw the longest prefix of a prompt last, because it has the KV cache of it. Pure.

A prompt is cut into blocks, in the order in which providers read it: tools, system prompt, messages. The digest of a
block covers the text from the beginning to the end of the block. Two prompts with an equal digest therefore share that
prefix. The digests also cover the tenant and the model. So the upstream of one tenant's call says nothing about the
prompts of another tenant. A prompt of one model attracts no call of another model.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Any, Literal

import orjson

from gateway.calls import Call
from gateway.upstream.load_balancer import LoadCandidate, by_rank, first_within_bound

BLOCK_BYTES = 512  # about 128 tokens: an eighth of the shortest prompt that OpenAI and Anthropic cache

LONG_BLOCK_BYTES = 4096  # of the text beyond `SHORT_BYTES`: a quarter of the text before it, or less

SHORT_BYTES = 16 * 1024

MAX_PROMPT_BYTES = 256 * 1024  # later text does not decide

BLOCK_ENDS = (
    *range(BLOCK_BYTES, SHORT_BYTES + 1, BLOCK_BYTES),
    *range(SHORT_BYTES + LONG_BLOCK_BYTES, MAX_PROMPT_BYTES + 1, LONG_BLOCK_BYTES),
)  # fmt: skip

MAX_TABLE_BLOCKS = 65_536  # the blocks that a backend remembers: at least 700 long prompts, in 10 MB of memory

PROMPT_KEYS = (  # in the providers' order
    "tools", "functions", "system", "instructions", "systemInstruction", "messages", "input", "contents", "prompt",
)  # fmt: skip

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
    if call.embeds or call.passes:
        return []
    given = call.body.get("prompt_cache_key")
    key = given if isinstance(given, str) and given else None
    root = sha256(orjson.dumps([tenant, call.model, key]))
    digests = [] if key is None else [root.digest()]
    text, start = memoryview(_prompt_bytes(call.body)), 0
    for end in BLOCK_ENDS:
        if end >= len(text):  # the last byte closes a list, or a text, which a longer prompt continues
            break
        root.update(text[start:end])
        digests.append(root.digest())
        start = end
    return digests


def _prompt_bytes(body: Mapping[str, Any]) -> bytes:
    """Return the prompt as JSON. A prompt with more turns begins with the same bytes, except for the last one."""
    text = b"".join([orjson.dumps(value, default=str) for key in PROMPT_KEYS if (value := body.get(key))])
    return _MARK.sub(b"", text) if b'"cache_control":' in text else text


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
        names: dict[str, None] = {}
        for digest in reversed(blocks):
            name = self._upstreams.get(digest)
            if name is not None:
                names[name] = None
        return list(names)

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


class Prefixes:
    """The prefixes that the upstreams of one backend saw."""

    def __init__(self) -> None:
        self._table = PrefixTable()

    def pick(
        self, call: Call, tenant: str, candidates: Sequence[LoadCandidate], preferred: str | None, *, remember: bool
    ) -> tuple[int, PrefixOutcome] | None:
        blocks = prefix_blocks(call, tenant)
        if not blocks:
            return None
        index, outcome = pick_warm(blocks, self._table.names(blocks), candidates, preferred)
        if remember:
            self._table.record(blocks, candidates[index].name)
        return index, outcome
