"""The policy in force, and its replacement while requests are served."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

from watchfiles import awatch

from gateway.config.errors import ConfigError, ConfigInvalid
from gateway.config.policy.history import BY_FILE, Author
from gateway.config.policy.model import Policy

OnReload = Callable[[Policy | None, tuple[ConfigError, ...]], None]
"""Called with the policy that is now in force, or with None and the faults that kept the last good one."""
Record = Callable[[Policy, Author], None]
"""Called in a thread with each policy that has come into force, and who wrote it. Raises nothing."""

# watchfiles imports it at its first wait, in the event loop of a gateway that serves by then: 30 ms and more.
import_module("anyio._backends._asyncio")

_POLL_S = 2.0  # bounds what a missed event costs: network and bind mounts have none
_DEBOUNCE_MS = 100  # an editor's rename-and-replace is over by then


def _no_history(policy: Policy, author: Author) -> None:
    """Where no history is kept."""


class PolicyHolder:
    """One reference to the policy in force. Readers take `current` once a request and see one policy throughout."""

    def __init__(
        self, initial: Policy, load: Callable[[], Policy], on_reload: OnReload, record: Record = _no_history
    ) -> None:
        """`load` reads and checks everything, and raises `ConfigInvalid`; it runs in a thread."""
        self._current = initial
        self._load = load
        self._on_reload = on_reload
        self._record = record
        self._faults: tuple[ConfigError, ...] = ()
        self._lock = asyncio.Lock()  # reloads in turn: an older reading never replaces a newer one

    @property
    def current(self) -> Policy:
        """The policy in force."""
        return self._current

    @property
    def faults(self) -> tuple[ConfigError, ...]:
        """Why the last reload failed; empty when it did not."""
        return self._faults

    def replace(self, policy: Policy) -> None:
        """Puts a checked policy in force, until the files change."""
        self._current = policy
        self._faults = ()
        self._on_reload(policy, ())

    async def change(self, stage: Callable[[Policy], Policy], write: Callable[[Policy], None], author: Author) -> bool:
        """Puts another policy in force, files first: they stay the truth. False: it is in force already.

        `stage` makes and checks it, given the one in force; `write` makes the files say it. Both run in a thread, no
        reload comes between them, and while either raises the policy in force stays.
        """
        async with self._lock:
            policy = await asyncio.to_thread(stage, self._current)
            if policy.hash == self._current.hash and not self._faults:
                return False
            await asyncio.to_thread(write, policy)
            self._current, self._faults = policy, ()
            self._on_reload(policy, ())
            await asyncio.to_thread(self._record, policy, author)
            return True

    async def reload(self) -> tuple[ConfigError, ...]:
        """Reads the files anew. On a fault the policy in force stays; the faults are returned."""
        return await self._reload(quiet=False)

    async def watch(self, folder: Path) -> None:
        """Reloads whenever the files of the folder have changed, until cancelled.

        A change that makes no difference is not reported. The folder may go away and come back.
        """
        seen: object = None  # nothing: what changed before the watch began is found at once
        while True:
            watched = _folder_identity(folder)
            if (state := _folder_state(folder)) != seen:
                seen = state
                await self._reload(quiet=True)
            if watched is None:
                await asyncio.sleep(_POLL_S)
                continue
            changes = awatch(
                folder,
                watch_filter=None,  # a Kubernetes volume changes by a hidden link, which the default filter drops
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
                        break  # another folder has this name now: the events still come from the old one
            except OSError:  # gone between the look and the watch, or the system has no watches left
                await asyncio.sleep(_POLL_S)

    async def _reload(self, quiet: bool) -> tuple[ConfigError, ...]:
        async with self._lock:
            before, faults_before = self._current, self._faults
            try:
                policy = await asyncio.to_thread(self._load)
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
    """Which folder has this name; None: none."""
    try:
        found = folder.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _folder_state(folder: Path) -> object:
    """Differs when a policy file has come, gone or changed. Links are followed: what they point to counts."""
    try:
        files = sorted(path for path in folder.iterdir() if path.suffix == ".yaml")
        stats = [(path.name, path.stat()) for path in files]
    except OSError:
        return _folder_identity(folder)
    return [(name, s.st_ino, s.st_size, s.st_mtime_ns) for name, s in stats]
