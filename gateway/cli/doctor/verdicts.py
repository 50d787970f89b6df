"""Findings on everything but the store, from facts alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from gateway.cli.client import several
from gateway.cli.doctor.findings import Finding, fault, ok, warning
from gateway.config import Config
from gateway.config.errors import KeyPath, render_path
from gateway.config.policy.check import CheckResult
from gateway.config.units import Address
from gateway.open_files import needed

SHOWN = 10  # faults that are repeated; `nearhit check` has them all
MIB, GIB = 2**20, 2**30
FULL = 64 * MIB  # of free disk: an append-only file and the log need some
# A million entries of 384 dimensions take 1.3 GB: `make bench-index`, docs/performance.md.
INDEX_BYTES_AN_ENTRY = 1300


def configuration(result: CheckResult) -> Iterator[Finding]:
    for problem in result.faults[:SHOWN]:
        yield fault("configuration", str(problem), "change that line; `nearhit check` says whether all is well")
    if len(result.faults) > SHOWN:
        yield fault(
            "configuration", f"{len(result.faults) - SHOWN} more faults", "run `nearhit check`, which lists them all"
        )
    for problem in result.warnings[:SHOWN]:
        yield warning("configuration", str(problem), "change that line, unless it is meant")
    if not result.faults:
        yield ok("configuration", f"{several(len(result.files), 'file') if result.files else 'no files'}, no faults")


def secrets(named: Sequence[tuple[KeyPath, str]], absent: Sequence[str]) -> Iterator[Finding]:
    """`named`: where the configuration names a variable, and which. What is in one is never looked at here."""
    for path, name in named:
        if name in absent:
            found = f"{render_path(path)} names the environment variable {name}, which is not set"
            yield fault("secrets", found, f"set {name} where the gateway is started (systemd: EnvironmentFile)")
    there = sorted({name for _, name in named} - set(absent))
    if there:
        yield ok("secrets", f"set: {', '.join(there)}")
    elif not named:
        yield ok("secrets", "the configuration names none")


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """`error`: why it cannot be used. `holds`: the model that the folder says it holds; None where it says none."""

    key: str  # of the configuration: embedder | embedder.migrate_from
    adapter: str
    wanted: str
    folder: Path | None = None
    holds: str | None = None
    error: str | None = None


def model(facts: ModelFacts) -> Finding:
    if facts.error is not None:
        first = "start that server" if facts.adapter == "triton" else "run `nearhit model fetch`"
        todo = f"{first}, or put {facts.key} right in config.yaml"
        return fault("embedding", f"{facts.key}: {facts.error}", todo)
    if facts.adapter == "hash":
        found = f"{facts.key}: the adapter hash goes by letters, not by meaning"
        return warning("embedding", found, "set embedder.adapter: onnx; hash is for measurements")
    if facts.holds is not None and facts.holds != facts.wanted:
        found = f"{facts.key}: {facts.folder} holds {facts.holds}, and {facts.wanted} is asked for"
        return fault("embedding", found, "name the model that is there, or fetch the other: `nearhit model fetch`")
    return ok("embedding", f"{facts.key}: {facts.wanted} is there" + (", every file as built" if facts.holds else ""))


@dataclass(frozen=True, slots=True)
class FolderFacts:
    """`error`: why nothing can be written there. `holder`: who holds its lock, such as "process 12 (nearhit)"."""

    path: Path
    error: str | None
    free: int
    holder: str | None


def data_dir(facts: FolderFacts, config: Config) -> Iterator[Finding]:
    if facts.error is not None:
        todo = "give the gateway's user write access there, or name another folder in data_dir"
        yield fault("data_dir", f"{facts.path} cannot be written: {facts.error}", todo)
        return
    held = f"in use by {facts.holder}" if facts.holder else "in use by no gateway"
    room = f"{facts.path} can be written, {_size(facts.free)} are free, {held}"
    # An append-only file is written anew beside the old one: for that moment there are two.
    wanted = 2 * config.store.max_memory if config.store.url == "embedded" else GIB
    if facts.free < FULL:
        yield fault("data_dir", room, "make room on that disk: the store cannot write")
    elif facts.free < wanted:
        todo = f"make room: {_size(wanted)} are wanted" + (
            ", twice store.max_memory" if config.store.url == "embedded" else ""
        )
        yield warning("data_dir", room, todo)
    else:
        yield ok("data_dir", room)


@dataclass(frozen=True, slots=True)
class PortFacts:
    """`error`: why nothing can listen there; None: it is free. `answers`: what a nearhit there says of itself; None
    where no nearhit answers."""

    key: str
    address: Address
    error: str | None
    taken: bool = False
    answers: Mapping[str, Any] | None = None


def port(facts: PortFacts) -> Finding:
    where = f"{facts.address} ({facts.key})"
    if facts.answers is not None:
        return ok("ports", f"{where}: a nearhit answers")
    if facts.taken:
        todo = f"find it with `ss -ltnp 'sport = :{facts.address.port}'` and stop it, or change {facts.key}"
        return fault("ports", f"{where}: taken, and what answers there is no nearhit", todo)
    if facts.error is not None:
        return fault("ports", f"{where}: nothing can listen there: {facts.error}", f"change {facts.key}")
    free = "the system chooses a port" if facts.address.port == 0 else "free, no gateway runs there"
    return ok("ports", f"{where}: {free}")


def running(ready: Mapping[str, Any] | None, stats: Mapping[str, Any] | None, refused: str | None) -> Iterator[Finding]:
    """Of a gateway that answers. `ready`: its /readyz; `stats`: its /admin/stats; `refused`: why there are none."""
    if ready is not None and ready.get("draining"):
        yield warning("gateway", "it is about to stop, and answers what it has begun", "wait for the next one")
    if refused is not None:
        yield warning("gateway", f"its admin port tells nothing: {refused}", "give the token that it was started with")
    if stats is None:
        return
    if stats.get("store_breaker", "closed") != "closed":
        yield fault("gateway", "it leaves its store alone after failures: all are misses", "see the store's findings")
    if not stats.get("index_ready", True):
        yield warning("gateway", "it still reads its index: not every question is found by similarity", "wait")
    for problem in stats.get("policy", {}).get("faults", ())[:SHOWN]:
        found = f"the last policy was refused, an older one is in force: {problem}"
        yield fault("gateway", found, "change that line: a saved file is read at once")
    for name, backend in stats.get("backends", {}).items():
        if backend.get("breaker", "closed") != "closed":
            found = f"it leaves the backend {name} alone after failures (breaker {backend['breaker']})"
            yield warning("gateway", found, "see the backends' findings; it asks again by itself")
    yield from _stalls(stats)
    yield ok("gateway", f"it runs, policy {stats.get('policy', {}).get('hash', 'unknown')}")


def _stalls(stats: Mapping[str, Any]) -> Iterator[Finding]:
    """More than one a minute since its start."""
    counts: Mapping[str, float] = stats.get("loop_stalls", {})
    total = sum(counts.values())
    if total <= max(1.0, (stats.get("now", 0.0) - stats.get("started", 0.0)) / 60):
        return
    most = max(counts, key=counts.__getitem__)
    longest = stats.get("loop", {}).get("longest") or {}
    at = f", the longest for {longest['ms']:g} ms" if longest else ""
    at += f" in {longest['where']}" if longest.get("where") else ""  # where not: nobody looked in time
    todo = {
        "starved": "give it a processor: other work, or a limit of its container, keeps it from one",
        "busy": "add gateways or server.workers: this one has more to compute than one processor does",
    }.get(most, "see docs/operations.md, NearhitLoopStalls: something blocks it")
    yield warning("gateway", f"its event loop stood still {total:.0f} times, most of them {most}{at}", todo)


@dataclass(frozen=True, slots=True)
class UpstreamFacts:
    """`why`: what stands in the way of asking it; None: it is ready. `likely`: the base URL that is likely meant; None:
    nothing speaks against this one."""

    address: str
    why: str | None
    likely: str | None = None


def backend(name: str, upstreams: Sequence[UpstreamFacts]) -> Iterator[Finding]:
    down = [one for one in upstreams if one.why is not None]
    # A backend with another address that answers goes on; without one its requests fail.
    level = fault if len(down) == len(upstreams) else warning
    for one in down:
        yield level(
            "backends", f"{name}: {one.address} {one.why}", f"start it, or put backends.{name} right in config.yaml"
        )
    for one in upstreams:
        if one.likely is not None:
            found = f"{name}: {one.address} answers, and has no list of models (404); {one.likely} has one"
            todo = f"put backends.{name} right in config.yaml, or what --upstream is given: {one.likely}"
            yield warning("backends", found, todo)
    good = [one.address for one in upstreams if one.why is None and one.likely is None]
    if good:
        yield ok("backends", f"{name}: {', '.join(good)} answers")


@dataclass(frozen=True, slots=True)
class MachineFacts:
    """`files`: how many this process may open. `memory`: bytes that it may have, of the machine or its control group;
    None where that is not told."""

    files: int
    memory: int | None


def limits(facts: MachineFacts, config: Config) -> Iterator[Finding]:
    wanted = needed(config)
    most = f"{wanted.inflight} requests in flight and {wanted.calls} calls need {wanted.files}"
    found = f"{facts.files} files may be open; {most}"
    todo = f"raise it to {wanted.ample}: LimitNOFILE of the unit, or `ulimit -n`"
    if facts.files < wanted.files:
        yield (fault if facts.files < wanted.inflight else warning)("limits", found, todo)
    else:
        yield ok("limits", found)
    if facts.memory is not None:
        yield _memory(facts.memory, config)


def _memory(memory: int, config: Config) -> Finding:
    store = config.store.max_memory if config.store.url == "embedded" else 0
    index = INDEX_BYTES_AN_ENTRY * config.index.max_entries if config.index.adapter == "faiss" else 0
    full = store + config.store.front_size + index
    bodies = config.server.max_inflight * config.server.max_body
    found = (
        f"{_size(memory)} of memory; full caches take {_size(full)}, of them the index {_size(index)}; "
        f"bodies at their limits would take another {_size(bodies)}"
    )
    if full > memory:
        return warning("limits", found, "lower index.max_entries, store.max_memory or store.front_size")
    return ok("limits", found)


def libraries(
    python: tuple[int, int], found: Mapping[str, str | None], locked: Mapping[str, str] | None
) -> Iterator[Finding]:
    """`found`: the version of each library that is needed, None where it is absent. `locked`: those that were tested;
    None where no lock lies beside the package."""
    if python < (3, 11):
        yield fault("libraries", f"Python is {python[0]}.{python[1]}", "use Python 3.11 or newer")
    absent = sorted(name for name, version in found.items() if version is None)
    if absent:
        yield fault("libraries", f"not installed: {', '.join(absent)}", "pip install -r requirements.lock")
    others = [
        f"{name} {version} (tested: {(locked or {})[name]})"
        for name, version in sorted(found.items())
        if version is not None and name in (locked or {}) and version != (locked or {})[name]
    ]
    if others:
        yield warning("libraries", f"other versions than tested: {', '.join(others)}", "make setup")
    elif not absent:
        compared = "no lock lies beside the package" if locked is None else "as in requirements.lock"
        yield ok("libraries", f"Python {python[0]}.{python[1]}, {len(found)} libraries, {compared}")


def clock(wall: float, built: float) -> Finding:
    """Seconds since 1970. `built`: when the newest file of this package was made: before that no clock can be."""
    if wall < built:
        return fault("clock", "this machine's clock is before the day this program was made", "set it: run chrony")
    return ok("clock", f"this machine's clock is at {datetime.fromtimestamp(wall, UTC):%Y-%m-%d %H:%M:%SZ}")


def _size(count: int) -> str:
    return f"{count / GIB:.1f} GiB" if count >= GIB else f"{count / MIB:.0f} MiB"
