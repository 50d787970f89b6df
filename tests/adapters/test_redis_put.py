"""A put as it goes over the wire: hiredis packs it to the same bytes."""

from __future__ import annotations

import hiredis
from hypothesis import given
from hypothesis import strategies as st

from gateway.adapters.redis.keyspace import ONE_SERVER
from gateway.adapters.redis.store import PUT, pack_put

words, texts = st.binary(max_size=40), st.text(st.characters(exclude_categories=["Cs"]), max_size=80)


@given(
    name=texts, scope=texts, expires_ms=st.integers(0), listed=words, record=words, worth=words, vector=words,
    embedder=words,
)  # fmt: skip
def test_a_put_is_packed_as_hiredis_packs_it(
    name: str, scope: str, expires_ms: int, listed: bytes, record: bytes, worth: bytes, vector: bytes, embedder: bytes
) -> None:
    keys = ONE_SERVER.put_keys(name)
    arguments = (0, expires_ms, listed, name, record, scope, worth, vector, embedder)
    packed = pack_put(name, scope, expires_ms, listed, record, worth, vector, embedder)
    command: tuple[str | int | bytes, ...] = ("EVALSHA", PUT.digest, len(keys), *keys, *arguments)
    assert packed == hiredis.pack_command(command)  # type: ignore[arg-type]
