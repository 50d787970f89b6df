"""Encrypted records: what opens them, what does not, and how they get another key, on a real server."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from gateway.adapters.redis import entry_pages
from gateway.adapters.redis.append_only_file import AppendOnlyFile
from gateway.adapters.redis.client import connect
from gateway.adapters.redis.embedded_valkey import EmbeddedValkey
from gateway.adapters.redis.records import PLAIN, RecordCodec, RecordInvalid, encode
from gateway.adapters.redis.store import RedisStore
from gateway.adapters.system.clock import SystemClock
from gateway.config.store import EncryptionKey, StoreEncryption
from gateway.errors import BadRequest, StartupError, StoreUnavailable
from gateway.features.encryption.record_keys import RecordKeys, codec_of
from gateway.features.encryption.rekey import Rekey, RekeyIncomplete
from tests.fixtures.entries import entry_of, vector_of

OLD, NEW = "o" * 32, "n" * 40
SECRET_TEXT = "the question of alice"


def test_a_record_opens_with_its_key_under_its_name_only() -> None:
    entry, keys = entry_of(question=SECRET_TEXT), RecordKeys([NEW, OLD])
    codec = RecordCodec(keys)
    record = codec.encode(entry)
    assert codec.decode(record, entry.fingerprint) == entry
    assert SECRET_TEXT.encode() not in record
    assert record != codec.encode(entry), "no nonce is used twice"
    other = entry_of("b").fingerprint
    for decode, sentence in (
        (lambda: codec.decode(record, other), "another entry"),
        (lambda: RecordCodec(RecordKeys([OLD])).decode(record, entry.fingerprint), "store.encryption does not have"),
        (lambda: PLAIN.decode(record, entry.fingerprint), "there is no key"),
        (lambda: codec.decode(record[:20], entry.fingerprint), "cut off"),
    ):
        with pytest.raises(RecordInvalid, match=sentence):
            decode()


@pytest.mark.parametrize("position", [1, 5, 16, 17, 60, -1])
def test_a_record_with_another_byte_does_not_open(position: int) -> None:
    entry, codec = entry_of(), RecordCodec(RecordKeys([NEW]))
    record = bytearray(codec.encode(entry))
    record[position] ^= 1
    with pytest.raises(RecordInvalid):
        codec.decode(bytes(record), entry.fingerprint)


def test_the_first_key_writes_and_plain_records_may_be_refused() -> None:
    entry = entry_of()
    former = RecordCodec(RecordKeys([OLD])).encode(entry)
    both = RecordCodec(RecordKeys([NEW, OLD]))
    assert both.decode(former, entry.fingerprint) == entry == both.decode(encode(entry), entry.fingerprint)
    assert both.keys is not None
    assert both.keys.is_current(both.encode(entry))
    assert not both.keys.is_current(former)
    with pytest.raises(RecordInvalid, match="read_plain"):
        RecordCodec(RecordKeys([NEW]), read_plain=False).decode(encode(entry), entry.fingerprint)


def test_keys_come_from_variables_and_files(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text(OLD + "\n")
    named = EncryptionKey(env="STORE_KEY")
    codec = codec_of(StoreEncryption(keys=(named, EncryptionKey(file=file))), {"STORE_KEY": NEW})
    assert codec.keys is not None
    assert codec.keys.id == RecordKeys([NEW]).id != RecordKeys([OLD]).id
    assert codec.decode(RecordCodec(RecordKeys([OLD])).encode(entry_of()), entry_of().fingerprint)
    with pytest.raises(StartupError, match=r"keys\[0\] names the environment variable STORE_KEY"):
        codec_of(StoreEncryption(keys=(named,)), {})
    with pytest.raises(StartupError, match=r"5 characters, expected at least 32") as caught:
        codec_of(StoreEncryption(keys=(named,)), {"STORE_KEY": "short"})
    assert "short" not in str(caught.value)
    with pytest.raises(StartupError, match="cannot be read"):
        codec_of(StoreEncryption(keys=(EncryptionKey(file=tmp_path / "none"),)), {})


@asynccontextmanager
async def server(path: Path) -> AsyncIterator[str]:
    valkey = await EmbeddedValkey.start(path, max_memory=2**26)
    try:
        yield valkey.url
    finally:
        await valkey.stop()


def opened(stack: AsyncExitStack, url: str, *secrets: str) -> RedisStore:
    codec = RecordCodec(RecordKeys(secrets)) if secrets else PLAIN
    store = RedisStore(connect(url, 30.0), embedder="e1", timeout_s=30.0, clock=SystemClock(), codec=codec)
    stack.push_async_callback(store.close)
    return store


def rekey_of(store: RedisStore) -> Rekey:
    return Rekey(store, AppendOnlyFile(store, owned=True))


async def test_no_plain_text_is_on_disk_after_a_run(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        url = await stack.enter_async_context(server(tmp_path))
        plain, sealing = opened(stack, url), opened(stack, url, NEW)
        await plain.put(entry_of(question=SECRET_TEXT), None)
        assert SECRET_TEXT.encode() in bytes_of(tmp_path)
        summary = await rekey_of(sealing).run()
        assert (summary.rewritten, summary.notes) == (1, [])
        (former,) = sealing.names.former
        await sealing.send("ZADD", former.list_keys[0], 4e9, "a")
        (note,) = (await rekey_of(sealing).run()).notes
        assert note.startswith("not reached: 1 records with the names of a former version")
        assert SECRET_TEXT.encode() not in bytes_of(tmp_path)


def bytes_of(path: Path) -> bytes:
    return b"".join(file.read_bytes() for file in (path / "store").rglob("*") if file.is_file())


async def test_all_records_get_the_first_key_and_a_second_run_has_nothing_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(entry_pages, "PAGE_BYTES", 4_000)
    async with AsyncExitStack() as stack:
        url = await stack.enter_async_context(server(tmp_path))
        plain, old, both = opened(stack, url), opened(stack, url, OLD), opened(stack, url, NEW, OLD)
        entries = [entry_of(str(i), question=SECRET_TEXT) for i in range(40)]
        for i, entry in enumerate(entries):
            await (plain if i % 2 else old).put(entry, vector_of(i))
        lost = opened(stack, url, "l" * 32)
        await lost.put(entry_of("lost"), None)
        with pytest.raises(BadRequest, match=r"store\.encryption\.keys"):
            await rekey_of(plain).run()
        summary = await rekey_of(both).run()
        assert (summary.rewritten, summary.current, summary.unreadable, summary.replaced) == (40, 0, 1, 0)
        again = await rekey_of(both).run()
        assert (again.rewritten, again.current, again.unreadable) == (0, 40, 1)
        new = opened(stack, url, NEW)
        for entry in entries:
            assert await new.get(entry.fingerprint) == entry
            assert await old.get(entry.fingerprint) is None
        record = await new.send("HGET", new.names.entry(entries[0].fingerprint), "record")
        assert SECRET_TEXT.encode() not in record
        assert await new.send("PTTL", new.names.entry(entries[0].fingerprint)) > 0
        assert len(await new.vectors_of([entry.fingerprint for entry in entries])) == 40


async def test_a_run_that_was_cut_off_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entry_pages, "PAGE_BYTES", 2_000)
    async with AsyncExitStack() as stack:
        url = await stack.enter_async_context(server(tmp_path))
        plain, sealing = opened(stack, url), opened(stack, url, NEW)
        for i in range(30):
            await plain.put(entry_of(str(i)), None)
        rekey, write = rekey_of(sealing), Rekey._write
        pages = 0

        async def failing(self: Rekey, *given: object) -> int:
            nonlocal pages
            pages += 1
            if pages == 3:
                raise StoreUnavailable("the store failed")
            return await write(self, *given)  # type: ignore[arg-type]

        with monkeypatch.context() as patched:
            patched.setattr(Rekey, "_write", failing)
            with pytest.raises(RekeyIncomplete) as caught:
                await rekey.run()
        done = caught.value.summary.rewritten
        assert 0 < done < 30
        summary = await rekey.run()
        assert (summary.current, summary.rewritten) == (done, 30 - done)


async def test_an_encrypted_record_is_amended_and_an_exchanged_one_is_a_miss(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        url = await stack.enter_async_context(server(tmp_path))
        store = opened(stack, url, NEW)
        unreadable: list[None] = []
        store.on_unreadable = lambda: unreadable.append(None)
        a, b = entry_of("a"), entry_of("b")
        await store.put(a, None)
        await store.put(b, None)
        amended = replace(a, askers=("x",))
        assert await store.amend(a, amended)
        assert not await store.amend(a, amended), "it is another entry by now"
        assert await store.get(a.fingerprint) == amended
        record = await store.send("HGET", store.names.entry(a.fingerprint), "record")
        await store.send("HSET", store.names.entry(b.fingerprint), "record", record)
        assert await store.get(b.fingerprint) is None
        assert len(unreadable) == 1
