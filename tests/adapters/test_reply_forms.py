"""Every method of the store's adapters returns a value of its type, or raises `StoreUnavailable`, whatever the server
replies.

The strange replies are those of public reports: replies of another command after a cancelled one (redis-py #2624 and
#2665, coredis #143), maps and doubles of RESP3 where RESP2 has lists (redis-py #4052, hiredis-py #197), null arrays in
place of nulls (KeyDB #697), and keys that another program uses with another type (rrq #56, scrapy-redis #192).
"""

from __future__ import annotations

import dataclasses
import inspect
import re
import types
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, Union, get_args, get_origin, get_type_hints

import numpy as np
import pytest

import gateway
from gateway.adapters.redis.append_only_file import AppendOnlyFile
from gateway.adapters.redis.client import connect
from gateway.adapters.redis.durability import WriteThrough
from gateway.adapters.redis.entry_sizes import RedisEntrySizes
from gateway.adapters.redis.migration import RedisMigration
from gateway.adapters.redis.purge import RedisPurges
from gateway.adapters.redis.records import RecordCodec
from gateway.adapters.redis.store import RedisStore
from gateway.adapters.redis.timeline import RedisTimeline
from gateway.errors import StoreUnavailable
from gateway.features.audit.redis import RedisAudit
from gateway.features.encryption.record_keys import RecordKeys
from gateway.features.encryption.rekey import Rekey, RekeyIncomplete
from gateway.features.jobs.redis_batches import RedisBatches
from gateway.features.jobs.redis_jobs import RedisJobs
from gateway.features.jobs.store import BatchFile, Bounds, Conclusion, Job, JobBatch, JobResult, JobStatus
from gateway.features.keys.records import KeyChange, VersionConflict
from gateway.features.keys.redis import RedisApiKeys
from gateway.features.light.rows import AnsweredRow
from gateway.features.light.state import Rollout
from gateway.features.light.store import RolloutStore
from gateway.features.limits.demands import Cost, LimitPart, PacedLimit, Return, Slot
from gateway.features.limits.redis import RedisQuotas
from gateway.features.replicas.change_log import ChangeLogReader, ChangeLogWriter
from gateway.features.replicas.gossip_stream import GossipStream, ReplyQueue
from gateway.features.replicas.lease_store import RedisLeases
from gateway.features.replicas.metrics_store import MetricsSnapshots
from gateway.features.replicas.policy_store import RedisPolicies
from gateway.features.resource_affinity.redis import RedisAffinity
from gateway.features.spend.figures import Figures
from gateway.features.spend.rows import OTHERS, Counts, Payer
from gateway.features.spend.store import SpendStore
from gateway.messages import Affinity
from gateway.ports import PublishedPolicy
from gateway.priority import Priority
from tests.fixtures.entries import entry_of
from tests.fixtures.stores import OutsideServer, outside_server
from tests.fixtures.strange_replies import STRANGE, CommandProxy, proxy_of

ENTRY = entry_of()
ROW = AnsweredRow(1.0, 2.0, "q", "a", "t", ("u1",))
NAME = ENTRY.fingerprint
UNIT = np.array([1.0, 0.0], dtype=np.float32)
JOB = Job("job", "t", "POST", "/v1/x", "", (), b"body", b"", Priority.NORMAL, "http://127.0.0.1/hook")
FILE = BatchFile("file", "t", "in.jsonl", "batch", ENTRY.created, ENTRY.expires, 3)
BATCH = JobBatch("batch", "t", "/v1/x", "file", ENTRY.created, ENTRY.expires, {}, (), b"")
DONE = Conclusion(JobStatus.COMPLETED, JobResult(200, (), b"ok"), "", 60.0)
POLICY = PublishedPolicy("hash", {"policy.yaml": ""}, "a", "", 1.0)
DEMANDS = [
    PacedLimit("rate", 1e6, 5, 1.0, member="m 1"),
    Slot("slot", 3, "m"),
    Cost("cost", 100, 1, "day", False),
    LimitPart("part", 0.5),
]
CLAIM = {"visibility_s": 9.0, "attempts": 3, "dead_s": 9.0}

# The arguments of every public method, by class. A dict at the end has its keyword arguments.
CALLS: dict[type, dict[str, list[Any]]] = {
    RedisStore: {
        "put": [ENTRY, UNIT], "get": [NAME], "amend": [ENTRY, ENTRY], "add_vector": [ENTRY, UNIT], "foreign": [[NAME]],
        "without_vector": [], "vectors": [], "fingerprints": [], "listed": [10], "vectors_of": [[NAME]],
        "fields_of": [[NAME], ["record"]],
        "add_counterexample": ["a b"], "counterexamples": [], "add_links": [["a b"]], "links": [],
        "remove_relations": [["a"], ["b"]], "put_learning": ["r", b"x"], "learning": ["r"], "stats": [],
        "add_turns": [["a b"]], "publish_change": [None], "delete": [[NAME]],
    },
    RedisPurges: {
        "write_bans": [{"b": b"x"}, ["c"]], "version": [], "bans": [], "latest_expiry": [], "records": ["e"],
        "delete": [[NAME]],
    },
    RedisMigration: {
        "foreign": [], "read": [NAME], "replace": [NAME, "v", UNIT, "k"], "is_settled": [], "settle": [],
    },
    RedisEntrySizes: {"weights": []},
    RedisTimeline: {"write": [{(60, 1): {"a": 1.0}}, {60: 10**10}], "read": [[(60, 1)]]},
    AppendOnlyFile: {"drop_deleted": []},
    WriteThrough: {"ensure_synced": []},
    RedisAudit: {"add": [b"line"], "latest": [5]},
    Rekey: {"run": []},
    RedisBatches: {
        "put_file": [FILE, b"abc"], "file": ["file"], "content": ["file"], "files": ["t"], "file_totals": [],
        "all_files": [], "replace_content": [FILE, b"x"], "create": [BATCH], "save": [BATCH], "batch": ["batch"],
        "batches": ["t"], "request_counts": ["batch"], "cancel": ["batch"], "is_cancelled": ["batch"], "open": [],
        "lease": ["batch", "d", 5.0], "record_start": ["batch", 1, "job"],
        "record_output": ["batch", 1, b"x", {"completed": True}], "progress": ["batch"],
        "outputs": ["batch", {"completed": True}], "drop_lines": ["batch", [2]], "revision": ["batch"],
        "delete_file": ["other", "t"], "close": [BATCH, 9.0], "erase": ["t", {"dry_run": True}],
    },
    RedisJobs: {
        "accept": [JOB, Bounds(9, 9, 2**20, 9.0), "key", "digest"], "counts": [], "job_state": ["job"],
        "status": ["job", "t"], "claim": ["w", 2, CLAIM], "beat": ["w", [("job", 1)]],
        "requeue": ["job", 1, 0.0, {"counted": True, "error": "x"}], "conclude": ["job", 1, DONE],
        "listed": ["active", 5], "find": [lambda *_: True], "retry": ["job"], "sweep": ["w"],
        "cancel": ["job", "t", 9.0], "due_webhooks": [5, 9.0, 5, {}], "record_delivery": ["job", "ok", None],
        "drop": ["job"], "erase": [["job"]],
    },
    RedisApiKeys: {
        "swap": [KeyChange("k", None, b"1", ["d"], []), {"synced": True}], "version": [], "by_digest": ["d"],
        "by_id": ["k"], "listed": [],
    },
    RedisQuotas: {"take": [DEMANDS], "settle": [[Return("pace", "rate", 1.0)]], "beat": ["g", [("slot", "m")]]},
    RedisAffinity: {"add": [{b"k": Affinity("b", None)}], "find": [[b"k"]]},
    RedisLeases: {
        "acquire": [NAME, None], "look_up": [NAME], "renew": [{NAME: 1}], "holders": [[NAME]], "release": [{NAME: 1}],
    },
    ChangeLogReader: {"end": [], "oldest": [], "read": ["0-0"], "wait": ["0-0"]},
    GossipStream: {"append": [["x"]], "end": [], "oldest": [], "read": ["0-0"], "wait": ["0-0"]},
    ReplyQueue: {"reply": ["q", b"x"], "wait": ["q", 0.01]},
    MetricsSnapshots: {"publish": [b"x", 9], "others": []},
    RedisPolicies: {"publish": [POLICY, "h"], "read": []},
    RolloutStore: {
        "read": ["r"], "replace": ["r", Rollout(), b"{}"], "claim": ["r", 1.0], "release": ["r"],
        "count": ["r", 1, {"audits": 1}], "evidence": ["r", 1], "add_rows": ["r", [ROW]], "rows": ["r"], "routes": [],
        "remove_rows": ["r", [ROW]],
    },
    SpendStore: {
        "add": ["g", 1, 1, {Payer("t"): Counts(requests=1)}], "move": [1, Payer("t"), OTHERS], "read": [0, 3],
        "add_figures": ["g", 1, 1, {"r": Figures()}], "read_figures": [0, 3], "claim": ["a", 1], "keep_claim": ["a", 1],
    },
}  # fmt: skip
SENDS = re.compile(r"store\.(?:execute|run|send|poll)\(")
# Functions that the classes of `CALLS` call, and one that reads nothing.
OF_FUNCTIONS = {f"gateway.adapters.redis.{name}" for name in ("entry_pages", "former_entries")}
NOT_DRIVEN = {(RedisStore, "close")}
MAX_GOOD = 3  # replies that are as they should be before the strange ones
REFUSED = (StoreUnavailable, RekeyIncomplete, VersionConflict)


class PatientClock:
    """Each reading is a minute later, so that a breaker lets every call through."""

    def __init__(self) -> None:
        self._now = 0.0

    def wall(self) -> float:
        return ENTRY.created

    def monotonic(self) -> float:
        self._now += 60.0
        return self._now


class Adapters(NamedTuple):
    """The objects of `CALLS` at a proxy, by class."""

    proxy: CommandProxy
    server: OutsideServer
    by_class: dict[type, Any]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OutsideServer]:
    """Yield a server of this module alone, whose append-only file is rewritten."""
    with outside_server(tmp_path_factory.mktemp("reply-forms")) as server:
        yield server


@pytest.fixture
async def adapters(server: OutsideServer) -> AsyncIterator[Adapters]:
    server.client.flushall()
    async with proxy_of(server.url) as (proxy, url):
        client, clock = connect(url), PatientClock()
        store = RedisStore(client, embedder="e", timeout_s=2.0, clock=clock, codec=RecordCodec(RecordKeys(["k" * 32])))
        store.journal = ChangeLogWriter("g", 100)
        file = AppendOnlyFile(store, owned=True)
        made = [
            store, RedisPurges(store), RedisMigration(store, embedder="other"), RedisEntrySizes(store, clock),
            RedisTimeline(store), file, WriteThrough(client), RedisAudit(store), Rekey(store, file),
            RedisBatches(store, client), RedisJobs(store, client), RedisApiKeys(store),
            RedisQuotas(store, timeout_s=2.0), RedisAffinity(store, timeout_s=2.0),
            RedisLeases(store, timeout_s=2.0, ttl_s=9.0), ChangeLogReader(client), GossipStream(store, client, "g"),
            ReplyQueue(store, client), MetricsSnapshots(store, client, "g"), RedisPolicies(store, client),
            SpendStore(store), RolloutStore(store),
        ]  # fmt: skip
        try:
            yield Adapters(proxy, server, {type(one): one for one in made})
        finally:
            await store.close()


async def call(adapter: Any, name: str) -> None:
    """Call a method with its arguments. Its result must have the annotated type."""
    method, arguments = getattr(adapter, name), list(CALLS[type(adapter)][name])
    options = arguments.pop() if arguments and isinstance(arguments[-1], dict) and takes_options(method) else {}
    hint = get_type_hints(method)["return"]
    if inspect.isasyncgenfunction(method):
        (hint,) = get_args(hint)
        results = [item async for item in method(*arguments, **options)]
        assert all(fits(item, hint) for item in results), (results, hint)
        return
    result = await method(*arguments, **options)
    assert fits(result, hint), (result, hint)


def takes_options(method: Callable[..., Any]) -> bool:
    parameters = inspect.signature(method).parameters.values()
    return any(one.kind is one.KEYWORD_ONLY for one in parameters)


def fits(value: Any, hint: Any) -> bool:
    """Return whether a value and its parts have a type."""
    origin, parts = get_origin(hint), get_args(hint)
    if hint is Any:
        return True
    if hint is None or hint is type(None):
        return value is None
    if origin in (Union, types.UnionType):
        return any(fits(value, part) for part in parts)
    if origin is np.ndarray:
        return isinstance(value, np.ndarray)
    if origin is tuple and parts[-1:] != (...,):
        return isinstance(value, tuple) and len(value) == len(parts) and all(map(fits, value, parts))
    if origin is not None and issubclass(origin, Mapping):
        return isinstance(value, Mapping) and all(fits(k, parts[0]) and fits(v, parts[1]) for k, v in value.items())
    if origin is not None and issubclass(origin, Collection):
        return isinstance(value, origin) and all(fits(item, parts[0]) for item in value)
    if dataclasses.is_dataclass(hint):
        hints = get_type_hints(hint)
        return isinstance(value, hint) and all(  # type: ignore[arg-type]
            fits(getattr(value, field.name), hints[field.name]) for field in dataclasses.fields(hint)
        )
    return isinstance(value, (int, float) if hint is float else hint) if isinstance(hint, type) else True


def test_every_public_method_is_driven() -> None:
    for adapter, calls in CALLS.items():
        public = {
            name
            for name, member in inspect.getmembers(adapter)
            if not name.startswith("_") and (inspect.iscoroutinefunction(member) or inspect.isasyncgenfunction(member))
        }
        assert public - {name for owner, name in NOT_DRIVEN if owner is adapter} == set(calls), adapter


def test_every_module_with_commands_is_driven() -> None:
    root = Path(gateway.__file__).parent
    with_commands = {
        ".".join(path.relative_to(root.parent).with_suffix("").parts)
        for path in root.rglob("*.py")
        if SENDS.search(path.read_text(encoding="utf-8"))
    }
    assert with_commands - OF_FUNCTIONS <= {adapter.__module__ for adapter in CALLS}


async def prepare(adapters: Adapters, adapter: type) -> None:
    """Fill the store, and call each method once with the server's own replies."""
    await adapters.by_class[RedisStore].put(ENTRY, UNIT)
    for name in CALLS[adapter]:
        await call_or_refuse(adapters.by_class[adapter], name)


async def call_or_refuse(adapter: Any, name: str) -> None:
    with suppress(*REFUSED):
        await call(adapter, name)


@pytest.mark.parametrize("adapter", CALLS, ids=lambda adapter: adapter.__name__)
async def test_a_strange_reply_is_a_store_fault(adapters: Adapters, adapter: type) -> None:
    await prepare(adapters, adapter)
    for name in CALLS[adapter]:
        adapters.proxy.send_strange(None)
        await call_or_refuse(adapters.by_class[adapter], name)
        commands = len(adapters.proxy.commands)
        for form, reply in STRANGE.items():
            for good in range(min(commands, MAX_GOOD)):
                for whole in (False, True):
                    adapters.proxy.send_strange(reply, good=good, whole=whole)
                    try:
                        await call_or_refuse(adapters.by_class[adapter], name)
                    except Exception as error:
                        error.add_note(f"{adapter.__name__}.{name}, {form} after {good} commands")
                        raise


@pytest.mark.parametrize("adapter", CALLS, ids=lambda adapter: adapter.__name__)
async def test_a_key_of_another_type_is_a_store_fault(adapters: Adapters, adapter: type) -> None:
    await prepare(adapters, adapter)
    keys = {word for command in adapters.proxy.commands for word in command if word.startswith(b"nearhit:")}
    client = adapters.server.client
    others: list[Callable[[bytes], Any]] = [
        lambda key: client.set(key, b"\xff"),
        lambda key: client.rpush(key, b"\xff"),
        lambda key: client.sadd(key, b"\xff"),
        lambda key: client.hset(key, b"\xff", b"\xff"),
        lambda key: client.zadd(key, {b"\xff": float("inf")}),
        lambda key: client.xadd(key, {b"\xff": b"\xff"}),
    ]
    for write in others:
        for name in CALLS[adapter]:
            client.flushall()
            for key in keys:
                write(key)
            await call_or_refuse(adapters.by_class[adapter], name)


async def test_a_listed_key_of_another_type_hides_no_other_entry(adapters: Adapters) -> None:
    store: RedisStore = adapters.by_class[RedisStore]
    migration: RedisMigration = adapters.by_class[RedisMigration]
    sizes: RedisEntrySizes = adapters.by_class[RedisEntrySizes]
    names = [f"{n:064x}" for n in range(3)]
    for name in names:
        await store.put(entry_of(fingerprint=name), UNIT)
    lost, *others = names
    adapters.server.client.delete(store.names.entry(lost))
    adapters.server.client.rpush(store.names.entry(lost), "another program")
    assert {stored.fingerprint for stored in await store.vectors_of(names)} == set(others)
    assert await store.foreign(names) == set()
    assert [page async for page in store.without_vector()] == [[lost]]
    assert {name async for page in migration.foreign() for name in page} == set(others)
    await migration.settle()
    (weights,) = [page async for page in sizes.weights()]
    assert {size.fingerprint for size in weights if size.size} == set(others)
    assert {name async for name, _ in store.fingerprints()} == set(others), "it is not listed any more"
