"""Files and batches on the server that stores the jobs: `nearhit:1:files:...` and `nearhit:1:batches:...`."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, replace
from typing import Any

import msgpack

from gateway.adapters.redis.durability import WriteThrough
from gateway.adapters.redis.store import RedisStore
from gateway.errors import StoreUnavailable
from gateway.features.jobs.store import ODD, BatchError, BatchFile, BatchProgress, JobBatch

TIMEOUT_S = 10.0  # files are large
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
        data = await self._execute(lambda client: client.hget(self._file(identity), "file"))
        return None if data is None else BatchFile(**_decode_record(data))

    async def content(self, identity: str) -> bytes | None:
        data: bytes | None = await self._execute(lambda client: client.hget(self._file(identity), "content"))
        return data

    async def files(self, tenant: str) -> list[BatchFile]:
        names = await self._execute(lambda client: client.zrevrange(self._files + "of:" + tenant, 0, -1))
        files = [await self.file(name.decode()) for name in names]
        gone = [name for name, file in zip(names, files, strict=True) if file is None]
        if gone:
            await self._execute(lambda client: client.zrem(self._files + "of:" + tenant, *gone))
        return [file for file in files if file is not None]

    async def file_totals(self) -> tuple[int, int]:
        async def read(client: Any) -> tuple[int, int]:
            names = await client.zrangebyscore(self._files + "all", "-inf", time.time())
            expired = [name for name in names if not await client.exists(self._file(name.decode()))]
            if expired:  # files that a batch needs stay
                await client.zrem(self._files + "all", *expired)
                await client.hdel(self._files + "sizes", *expired)
            sizes = await client.hvals(self._files + "sizes")
            return len(sizes), sum(map(int, sizes))

        return await self._store.execute(read, TIMEOUT_S)

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
        await self._execute(lambda client: client.hset(self._batch(batch.id), "batch", _encode_batch(batch)))

    async def batch(self, identity: str) -> JobBatch | None:
        data = await self._execute(lambda client: client.hget(self._batch(identity), "batch"))
        if data is None:
            return None
        fields = _decode_record(data)
        headers = tuple((name, value) for name, value in fields.pop("headers"))
        return JobBatch(headers=headers, faults=tuple(BatchError(**fault) for fault in fields.pop("faults")), **fields)

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

        return await self._store.execute(read, TIMEOUT_S)

    async def request_counts(self, batch: str) -> tuple[int, int]:
        row = await self._execute(lambda client: client.hmget(self._batch(batch), "completed", "failed"))
        if row[0] is not None:
            return int(row[0]), int(row[1])
        completed = await self._execute(lambda client: client.hlen(self._batch(batch, "out")))
        return int(completed), int(await self._execute(lambda client: client.hlen(self._batch(batch, "err"))))

    async def cancel(self, batch: str) -> None:
        await self._execute(lambda client: client.hset(self._batch(batch), "cancel", "1"))

    async def is_cancelled(self, batch: str) -> bool:
        return bool(await self._execute(lambda client: client.hexists(self._batch(batch), "cancel")))

    async def open(self) -> list[str]:
        return [
            name.decode() for name in await self._execute(lambda client: client.zrange(self._batches + "open", 0, -1))
        ]

    async def lease(self, batch: str, driver: str, hold_s: float) -> bool:
        return bool(
            await self._execute(lambda _: self._lease([self._batch(batch, "driver")], [driver, round(1000 * hold_s)]))
        )

    async def progress(self, batch: str) -> BatchProgress:
        jobs = await self._execute(lambda client: client.hgetall(self._batch(batch, "jobs")))
        done = await self._execute(lambda client: client.hkeys(self._batch(batch, "out")))
        done += await self._execute(lambda client: client.hkeys(self._batch(batch, "err")))
        return BatchProgress({int(line): job.decode() for line, job in jobs.items()}, frozenset(map(int, done)))

    async def record_start(self, batch: str, line: int, job: str) -> None:
        await self._execute(lambda client: client.hset(self._batch(batch, "jobs"), line, job))

    async def record_output(self, batch: str, line: int, output: bytes, *, completed: bool) -> None:
        await self._execute(lambda client: client.hset(self._batch(batch, "out" if completed else "err"), line, output))

    async def outputs(self, batch: str, *, completed: bool) -> dict[int, bytes]:
        outputs = await self._execute(lambda client: client.hgetall(self._batch(batch, "out" if completed else "err")))
        return {int(line): output for line, output in outputs.items()}

    async def all_files(self) -> list[BatchFile]:
        """Return the files of all tenants. Raise `StoreUnavailable`."""
        names = await self._execute(lambda client: client.zrange(self._files + "all", 0, -1))
        files = [await self.file(name.decode()) for name in names]
        return [file for file in files if file is not None]

    async def replace_content(self, file: BatchFile, content: bytes) -> None:
        """Replace the content of a file that exists. Its expiry stays. Raise `StoreUnavailable`."""
        record = msgpack.packb(asdict(replace(file, size=len(content))), unicode_errors=ODD)
        arguments = [record, content, file.id, len(content)]
        await self._execute(lambda _: self._replace([self._file(file.id), self._files + "sizes"], arguments))

    async def drop_lines(self, batch: str, lines: Sequence[int]) -> None:
        """Forget lines of a batch that runs, and let its driver read the input again. Raise `StoreUnavailable`."""

        def drop(pipe: Any) -> None:
            for part in ("jobs", "out", "err"):
                pipe.hdel(self._batch(batch, part), *lines)
            pipe.hincrby(self._batch(batch), "revision", 1)

        await self._write(drop)

    async def revision(self, batch: str) -> int:
        return int(await self._execute(lambda client: client.hget(self._batch(batch), "revision")) or 0)

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

    async def _execute(self, operation: Callable[[Any], Awaitable[Any]]) -> Any:
        return await self._store.execute(operation, TIMEOUT_S)

    async def _write(self, fill: Callable[[Any], None]) -> Sequence[Any]:
        """Execute all commands or none."""

        async def write(client: Any) -> Sequence[Any]:
            async with client.pipeline(transaction=True) as pipe:
                fill(pipe)
                return list(await pipe.execute())

        return await self._store.execute(write, TIMEOUT_S)

    def _file(self, identity: str) -> str:
        return f"{self._files}file:{identity}"

    def _batch(self, identity: str, part: str = "batch") -> str:
        return f"{self._batches}{part}:{identity}"


def _encode_batch(batch: JobBatch) -> bytes:
    return bytes(msgpack.packb(asdict(batch), unicode_errors=ODD))


def _decode_record(data: bytes) -> dict[str, Any]:
    try:
        record: dict[str, Any] = msgpack.unpackb(data, unicode_errors=ODD)
    except (ValueError, msgpack.UnpackException):
        raise StoreUnavailable("a file or batch record is unreadable") from None
    return record
