"""The policy in force, and its replacement while the gateway serves requests."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from importlib import import_module
from pathlib import Path
from types import ModuleType

from gateway.config.errors import ConfigError, ConfigInvalid
from gateway.config.policy.history import BY_FILE, Author
from gateway.config.policy.model import Policy

OnReload = Callable[[Policy | None, tuple[ConfigError, ...]], None]
"""Called with the policy that is now in force, or with None and the faults of the rejected one."""
Prepare = Callable[[Policy], Awaitable[None]]
"""Called with a policy before it is put in force. Raises `ConfigInvalid` if it cannot be."""
Record = Callable[[Policy, Author], None]
"""Called in a thread with each policy that is put in force, and its author. Raises nothing."""

_POLL_S = 2.0  # bounds the delay of a missed event: network and bind mounts send none
_DEBOUNCE_MS = 100  # long enough for an editor's rename-and-replace


def import_watch() -> ModuleType:
    """Import what `watch` needs. Call it before the gateway serves: it takes 30 ms and more.

    watchfiles would import the second module at its first wait.
    """
    watchfiles = import_module("watchfiles")
    import_module("anyio._backends._asyncio")
    return watchfiles


async def ready(policy: Policy) -> None:
    """Need nothing for a policy."""


def _no_history(policy: Policy, author: Author) -> None:
    """Keep no history."""


class PolicyHolder:
    """Holds the policy in force. A reader takes `current` once per request, and sees one policy throughout."""

    def __init__(
        self,
        initial: Policy,
        load: Callable[[], Policy],
        on_reload: OnReload,
        record: Record = _no_history,
        prepare: Prepare = ready,
    ) -> None:
        """`load` reads and checks all files, and raises `ConfigInvalid`. It runs in a thread."""
        self._current = initial
        self._load = load
        self._on_reload = on_reload
        self._record = record
        self._prepare = prepare
        self._faults: tuple[ConfigError, ...] = ()
        self._lock = asyncio.Lock()  # one reload at a time, so that an older reading never replaces a newer one

    @property
    def current(self) -> Policy:
        """The policy in force."""
        return self._current

    @property
    def faults(self) -> tuple[ConfigError, ...]:
        """The faults of the last reload; empty if it succeeded."""
        return self._faults

    def replace(self, policy: Policy) -> None:
        """Put a checked policy in force until the files change."""
        self._current = policy
        self._faults = ()
        self._on_reload(policy, ())

    async def change(self, stage: Callable[[Policy], Policy], write: Callable[[Policy], None], author: Author) -> bool:
        """Write and put in force another policy. Return False if it is in force already.

        `stage` makes and checks the policy, given the one in force; `write` writes its files, which stay the source of
        truth. Both run in a thread, without a reload between them. If either raises, the policy in force stays.
        """
        async with self._lock:
            policy = await asyncio.to_thread(stage, self._current)
            if policy.hash == self._current.hash and not self._faults:
                return False
            await self._prepare(policy)
            await asyncio.to_thread(write, policy)
            self._current, self._faults = policy, ()
            self._on_reload(policy, ())
            await asyncio.to_thread(self._record, policy, author)
            return True

    async def reload(self) -> tuple[ConfigError, ...]:
        """Read the files again, and return their faults. If there are any, the policy in force stays."""
        return await self._reload(quiet=False)

    async def watch(self, folder: Path) -> None:
        """Reload after every change of the files, until cancelled.

        A change without effect is not reported. The folder may go away and come back.
        """
        watchfiles = import_watch()
        seen: object = None  # differs from any state, so that a change before the watch is found at once
        while True:
            watched = _folder_identity(folder)
            if (state := _folder_state(folder)) != seen:
                seen = state
                await self._reload(quiet=True)
            if watched is None:
                await asyncio.sleep(_POLL_S)
                continue
            changes = watchfiles.awatch(
                folder,
                watch_filter=None,  # a Kubernetes volume changes a hidden link, which the default filter drops
                debounce=_DEBOUNCE_MS,
                rust_timeout=int(_POLL_S * 1000),
                yield_on_timeout=True,
                recursive=False,
            )
            try:
                async for _ in changes:
                    if (state := _folder_state(folder)) != seen:
                        seen = state
                        await self._reload(quiet=True)
                    if _folder_identity(folder) != watched:
                        break  # another folder has this name now, and the events still come from the old one
            except OSError:  # the folder went away before the watch, or the system has no watches left
                await asyncio.sleep(_POLL_S)

    async def _reload(self, quiet: bool) -> tuple[ConfigError, ...]:
        async with self._lock:
            before, faults_before = self._current, self._faults
            try:
                policy = await asyncio.to_thread(self._load)
                await self._prepare(policy)
            except ConfigInvalid as invalid:
                self._faults = invalid.faults
                if not (quiet and self._faults == faults_before):
                    self._on_reload(None, self._faults)
                return self._faults
            self._faults = ()
            self._current = policy
            if not (quiet and policy.hash == before.hash and not faults_before):
                self._on_reload(policy, ())
            if policy.hash != before.hash:
                await asyncio.to_thread(self._record, policy, BY_FILE)
            return ()


def _folder_identity(folder: Path) -> tuple[int, int] | None:
    """Return the identity of the folder with this name, or None if there is none."""
    try:
        status = folder.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _folder_state(folder: Path) -> object:
    """Return a value that differs after a policy file is added, removed or changed. Links are followed."""
    try:
        files = sorted(path for path in folder.iterdir() if path.suffix == ".yaml")
        stats = [(path.name, path.stat()) for path in files]
    except OSError:
        return _folder_identity(folder)
    return [(name, s.st_ino, s.st_size, s.st_mtime_ns) for name, s in stats]
