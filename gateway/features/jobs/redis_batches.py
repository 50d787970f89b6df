"""Files and batches on the server that stores the jobs: `nearhit:1:files:...` and `nearhit:1:batches:...`."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from typing import Any, TypeVar

import msgpack

from gateway.adapters.redis import replies
from gateway.adapters.redis.durability import WriteThrough
from gateway.adapters.redis.store import RedisStore
from gateway.errors import StoreUnavailable
from gateway.features.jobs.store import ODD, BatchError, BatchFile, BatchProgress, JobBatch

TIMEOUT_S = 10.0  # files are large
NAMES = replies.list_of(replies.text)
T = TypeVar("T")
LEASE = """
local holder = redis.call('GET', KEYS[1])
if holder and holder ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return 1
"""


# KEYS: the file, and the sizes of all. ARGV: the record, the content, the id and the size.
REPLACE = """
if redis.call('EXISTS', KEYS[1]) == 0 then return 0 end
redis.call('HSET', KEYS[1], 'file', ARGV[1], 'content', ARGV[2])
redis.call('HSET', KEYS[2], ARGV[3], ARGV[4])
return 1
"""


class RedisBatches:
    """`RedisBatches` implements `BatchStore`. Without `sync` a batch counts as accepted before it is on disk."""

    def __init__(self, store: RedisStore, client: Any, sync: WriteThrough | None = None) -> None:
        self._store = store
        self._sync = sync
        self._files, self._batches = store.names.key("files:"), store.names.key("batches:")
        self._lease, self._replace = client.register_script(LEASE), client.register_script(REPLACE)

    async def put_file(self, file: BatchFile, content: bytes) -> None:
        def put(pipe: Any) -> None:
            pipe.hset(
                self._file(file.id),
                mapping={"file": msgpack.packb(asdict(file), unicode_errors=ODD), "content": content},
            )
            pipe.expireat(self._file(file.id), int(file.expires))
            pipe.zadd(self._files + "of:" + file.tenant, {file.id: file.created})
            pipe.expire(self._files + "of:" + file.tenant, 365 * 86_400)
            pipe.zadd(self._files + "all", {file.id: file.expires})
            pipe.hset(self._files + "sizes", file.id, file.size)

        if self._sync is not None:
            await self._sync.ensure_synced()
        await self._write(put)

    async def file(self, identity: str) -> BatchFile | None:
        return await self._execute(lambda client: client.hget(self._file(identity), "file"), replies.optional(_file))

    async def content(self, identity: str) -> bytes | None:
        content = replies.optional(replies.data)
        return await self._execute(lambda client: client.hget(self._file(identity), "content"), content)

    async def files(self, tenant: str) -> list[BatchFile]:
        names = await self._execute(lambda client: client.zrevrange(self._files + "of:" + tenant, 0, -1), NAMES)
        files = [await self.file(name) for name in names]
        gone = [name for name, file in zip(names, files, strict=True) if file is None]
        if gone:
            await self._execute(lambda client: client.zrem(self._files + "of:" + tenant, *gone), replies.nothing)
        return [file for file in files if file is not None]

    async def file_totals(self) -> tuple[int, int]:
        async def read(client: Any) -> Any:
            names = await client.zrangebyscore(self._files + "all", "-inf", time.time())
            expired = [name for name in names if not await client.exists(self._file(name.decode()))]
            if expired:  # files that a batch needs stay
                await client.zrem(self._files + "all", *expired)
                await client.hdel(self._files + "sizes", *expired)
            return await client.hvals(self._files + "sizes")

        sizes = await self._execute(read, replies.list_of(replies.count))
        return len(sizes), sum(sizes)

    async def delete_file(self, identity: str, tenant: str) -> None:
        def delete(pipe: Any) -> None:
            pipe.unlink(self._file(identity))
            pipe.zrem(self._files + "of:" + tenant, identity)
            pipe.zrem(self._files + "all", identity)
            pipe.hdel(self._files + "sizes", identity)

        await self._write(delete)

    async def create(self, batch: JobBatch) -> None:
        def create(pipe: Any) -> None:
            pipe.hset(self._batch(batch.id), "batch", _encode_batch(batch))
            pipe.zadd(self._batches + "open", {batch.id: batch.created})
            pipe.zadd(self._batches + "of:" + batch.tenant, {batch.id: batch.created})
            pipe.expire(self._batches + "of:" + batch.tenant, 365 * 86_400)
            pipe.persist(self._file(batch.input_file))

        if self._sync is not None:
            await self._sync.ensure_synced()
        await self._write(create)

    async def save(self, batch: JobBatch) -> None:
        await self._execute(
            lambda client: client.hset(self._batch(batch.id), "batch", _encode_batch(batch)), replies.nothing
        )

    async def batch(self, identity: str) -> JobBatch | None:
        return await self._execute(lambda client: client.hget(self._batch(identity), "batch"), replies.optional(_batch))

    async def batches(self, tenant: str) -> list[str]:
        async def read(client: Any) -> list[str]:
            listed = self._batches + "of:" + tenant
            names = await client.zrevrange(listed, 0, -1)
            async with client.pipeline(transaction=False) as pipe:
                for name in names:
                    pipe.exists(self._batch(name.decode()))
                exists = await pipe.execute() if names else []
            gone = [name for name, is_there in zip(names, exists, strict=True) if not is_there]
            if gone:  # expired
                await client.zrem(listed, *gone)
            return [name.decode() for name, is_there in zip(names, exists, strict=True) if is_there]

        return await self._execute(read, list)

    async def request_counts(self, batch: str) -> tuple[int, int]:
        counts = replies.list_of(replies.optional(replies.count), 2)
        completed, failed = await self._execute(
            lambda client: client.hmget(self._batch(batch), "completed", "failed"), counts
        )
        if completed is None or failed is None:
            completed = await self._execute(lambda client: client.hlen(self._batch(batch, "out")), replies.count)
            failed = await self._execute(lambda client: client.hlen(self._batch(batch, "err")), replies.count)
        return completed, failed

    async def cancel(self, batch: str) -> None:
        await self._execute(lambda client: client.hset(self._batch(batch), "cancel", "1"), replies.nothing)

    async def is_cancelled(self, batch: str) -> bool:
        return await self._execute(lambda client: client.hexists(self._batch(batch), "cancel"), replies.truth)

    async def open(self) -> list[str]:
        return await self._execute(lambda client: client.zrange(self._batches + "open", 0, -1), NAMES)

    async def lease(self, batch: str, driver: str, hold_s: float) -> bool:
        keys, arguments = [self._batch(batch, "driver")], [driver, round(1000 * hold_s)]
        return await self._execute(lambda _: self._lease(keys, arguments), replies.truth)

    async def progress(self, batch: str) -> BatchProgress:
        names, lines = replies.map_of(replies.number, replies.text), replies.list_of(replies.number)
        jobs = await self._execute(lambda client: client.hgetall(self._batch(batch, "jobs")), names)
        done = await self._execute(lambda client: client.hkeys(self._batch(batch, "out")), lines)
        done += await self._execute(lambda client: client.hkeys(self._batch(batch, "err")), lines)
        return BatchProgress(jobs, frozenset(done))

    async def record_start(self, batch: str, line: int, job: str) -> None:
        await self._execute(lambda client: client.hset(self._batch(batch, "jobs"), line, job), replies.nothing)

    async def record_output(self, batch: str, line: int, output: bytes, *, completed: bool) -> None:
        key = self._batch(batch, "out" if completed else "err")
        await self._execute(lambda client: client.hset(key, line, output), replies.nothing)

    async def outputs(self, batch: str, *, completed: bool) -> dict[int, bytes]:
        key = self._batch(batch, "out" if completed else "err")
        return await self._execute(lambda client: client.hgetall(key), replies.map_of(replies.number, replies.data))

    async def all_files(self) -> list[BatchFile]:
        """Return the files of all tenants. Raise `StoreUnavailable`."""
        names = await self._execute(lambda client: client.zrange(self._files + "all", 0, -1), NAMES)
        files = [await self.file(name) for name in names]
        return [file for file in files if file is not None]

    async def replace_content(self, file: BatchFile, content: bytes) -> None:
        """Replace the content of a file that exists. Its expiry stays. Raise `StoreUnavailable`."""
        record = msgpack.packb(asdict(replace(file, size=len(content))), unicode_errors=ODD)
        arguments = [record, content, file.id, len(content)]
        keys = [self._file(file.id), self._files + "sizes"]
        await self._execute(lambda _: self._replace(keys, arguments), replies.nothing)

    async def drop_lines(self, batch: str, lines: Sequence[int]) -> None:
        """Forget lines of a batch that runs, and let its driver read the input again. Raise `StoreUnavailable`."""

        def drop(pipe: Any) -> None:
            for part in ("jobs", "out", "err"):
                pipe.hdel(self._batch(batch, part), *lines)
            pipe.hincrby(self._batch(batch), "revision", 1)

        await self._write(drop)

    async def revision(self, batch: str) -> int:
        revision = await self._execute(
            lambda client: client.hget(self._batch(batch), "revision"), replies.optional(replies.number)
        )
        return revision or 0

    async def erase(self, tenant: str, *, dry_run: bool) -> int:
        """Remove all files and batches of a tenant, and return their number. Raise `StoreUnavailable`."""
        files, batches = await self.files(tenant), await self.batches(tenant)
        if dry_run:
            return len(files) + len(batches)
        for name in batches:

            def remove(pipe: Any, name: str = name) -> None:
                pipe.unlink(*(self._batch(name, part) for part in ("batch", "jobs", "out", "err", "driver")))
                pipe.zrem(self._batches + "open", name)
                pipe.zrem(self._batches + "of:" + tenant, name)

            await self._write(remove)
        for file in files:
            await self.delete_file(file.id, tenant)
        return len(files) + len(batches)

    async def close(self, batch: JobBatch, keep_s: float) -> None:
        completed, failed = await self.request_counts(batch.id)

        def close(pipe: Any) -> None:
            counts = {"completed": completed, "failed": failed}
            pipe.hset(self._batch(batch.id), mapping={"batch": _encode_batch(batch), **counts})
            pipe.expire(self._batch(batch.id), round(keep_s))
            pipe.unlink(*(self._batch(batch.id, part) for part in ("jobs", "out", "err", "driver")))
            pipe.zrem(self._batches + "open", batch.id)
            pipe.expire(self._file(batch.input_file), round(keep_s))

        await self._write(close)

    async def _execute(self, operation: Callable[[Any], Awaitable[Any]], read: replies.Reader[T]) -> T:
        return await self._store.execute(operation, TIMEOUT_S, read=read)

    async def _write(self, fill: Callable[[Any], None]) -> None:
        """Execute all commands or none."""

        async def write(client: Any) -> None:
            async with client.pipeline(transaction=True) as pipe:
                fill(pipe)
                await pipe.execute()

        await self._execute(write, replies.nothing)

    def _file(self, identity: str) -> str:
        return f"{self._files}file:{identity}"

    def _batch(self, identity: str, part: str = "batch") -> str:
        return f"{self._batches}{part}:{identity}"


def _encode_batch(batch: JobBatch) -> bytes:
    return bytes(msgpack.packb(asdict(batch), unicode_errors=ODD))


def _file(data: Any) -> BatchFile:
    with _decoding():
        return BatchFile(**msgpack.unpackb(replies.data(data), unicode_errors=ODD))


def _batch(data: Any) -> JobBatch:
    with _decoding():
        fields = msgpack.unpackb(replies.data(data), unicode_errors=ODD)
        headers = tuple((name, value) for name, value in fields.pop("headers"))
        return JobBatch(headers=headers, faults=tuple(BatchError(**fault) for fault in fields.pop("faults")), **fields)


@contextmanager
def _decoding() -> Iterator[None]:
    try:
        yield
    except (*replies.UNREADABLE, msgpack.UnpackException):
        raise StoreUnavailable("a file or batch record is unreadable") from None
