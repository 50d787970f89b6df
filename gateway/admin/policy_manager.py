"""The life of policies in a gateway that runs: checked, written to the files, put in force, remembered, taken back."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gateway.admin.policy_tests import failed_expectations
from gateway.config import Config
from gateway.config.errors import ConfigError, ConfigInvalid
from gateway.config.policy.files import PolicyFolder
from gateway.config.policy.history import BY_FILE, Author, History, PolicyChange, Version, unified_diff
from gateway.config.policy.load import LAST_FILE, file_order, hash_texts, policy_files, read_policy, read_texts
from gateway.config.policy.model import Policy, PolicySource
from gateway.config.policy.reloader import OnReload, PolicyHolder
from gateway.errors import GatewayError, NotFound
from gateway.ports import Published


# From policy files to a policy that may be put in force: read, checked, and held against its own expectations.
def check_policy(texts: Sequence[PolicySource], config: Config) -> Policy:
    """The policy of these files, in their order. Raises `ConfigInvalid` with every fault."""
    adapters = backend_adapters(config)
    reading = read_policy(texts, config.backends, folder=config.policies, adapters=adapters)
    if reading.policy is None:
        raise ConfigInvalid(reading.faults)
    if faults := failed_expectations(reading.policy, adapters):
        raise ConfigInvalid(faults)
    return reading.policy


def backend_adapters(config: Config) -> dict[str, str]:
    """Of each backend."""
    return {name: backend.adapter for name, backend in config.backends.items()}


def check_folder(folder: Path, config: Config) -> Policy:
    """The same of all files of a folder."""
    texts, faults = read_texts(policy_files(folder))
    if faults:  # where a file is missing nobody knows which rule is the last
        reading = read_policy(texts, config.backends, ends=False)
        raise ConfigInvalid([*faults, *reading.faults])
    return check_policy(texts, config)


LOG = logging.getLogger("nearhit")

AUDIT = logging.getLogger("nearhit.audit")

HISTORY_FOLDER = "policy-history"  # in data_dir

FLEET_AUTHOR = "fleet"  # what another gateway on the store was told

Changed = Callable[[Policy, str, Author, float], None]
"""Called with a policy that the admin port has put in force, the hash of the one before, who did it and when."""


def _no_listener(*_: object) -> None:
    """Where no other gateway is."""


class NoFiles(GatewayError):
    """The gateway runs without policy files."""

    status = 409
    kind = "no_policy_files"


class PolicyConflict(GatewayError):
    """The policy is not the one that the change was made for."""

    status = 412
    kind = "policy_changed"


@dataclass(frozen=True, slots=True)
class StagedPolicy:
    """A policy that may be put in force, beside the one that is."""

    policy: Policy
    diff: str
    previous: str  # hash of the one that is

    def as_json(self) -> dict[str, Any]:
        return {
            "hash": self.policy.hash,
            "previous": self.previous,
            "routes": [route.name for route in self.policy.routes],
            "warnings": [warning.as_json() for warning in self.policy.warnings],
            "diff": self.diff,
        }


class PolicyManager:
    """`folder` None: there are no files, so nothing can be changed. `swap` puts a policy in force at once."""

    def __init__(
        self, config: Config, folder: Path | None, initial: Policy, swap: OnReload, wall: Callable[[], float]
    ) -> None:
        self._config = config
        self._folder = None if folder is None else PolicyFolder(folder)
        self.history = open_history(config, wall)
        self._holder = PolicyHolder(initial, self._read_policy, swap, self.history.record)
        self._wall = wall
        self.changed: Changed = _no_listener

    @property
    def is_editable(self) -> bool:
        """Whether there are files to change."""
        return self._folder is not None

    @property
    def current(self) -> Policy:
        return self._holder.current

    async def begin(self) -> None:
        """Reads the history, and adds the policy of the start to it."""
        await asyncio.to_thread(self.history.open)
        if self._folder is not None:
            await asyncio.to_thread(self.history.record, self._holder.current, BY_FILE)

    async def watch(self) -> None:
        """Follows the files, until cancelled."""
        folder = self._files()
        await self._holder.watch(folder.path)

    async def reload(self) -> tuple[ConfigError, ...]:
        """Reads the files anew."""
        return await self._holder.reload()

    async def validate(self, file: str | None, content: bytes) -> StagedPolicy:
        """What this content of a file would make of the policy. Changes nothing. Raises `ConfigInvalid`."""
        current = self._holder.current
        policy = await asyncio.to_thread(lambda: check_policy(self._with_file(file, content), self._config))
        return StagedPolicy(
            policy, unified_diff(file_contents(current.texts), file_contents(policy.texts)), current.hash
        )

    async def apply(
        self, file: str | None, content: bytes, author: Author, match: str | None
    ) -> tuple[StagedPolicy, bool]:
        """Puts it in force -> what it is, and whether anything has changed.

        `match`: hash of the policy that the change was made for; None: whatever is there. Raises `ConfigInvalid` with
        every fault, `PolicyConflict`, `NoFiles` or `NotWritable`; then what was in force stays."""
        self._files()
        return await self._apply(lambda: self._with_file(file, content), author, match)

    async def roll_back(self, key: str | None, author: Author, match: str | None) -> tuple[StagedPolicy, bool]:
        """The files of a version again, as a new version. `key`: its number or hash; None: the one before the last.
        Raises what `apply` does, and `NotFound`."""
        folder = self._files()
        version = await asyncio.to_thread(self.version, key)
        files = {name: content.encode() for name, content in version.files.items()}
        return await self._apply(lambda: folder.to_texts(files), author, match)

    async def adopt(self, published: Published) -> None:
        """What another gateway was told to put in force. Raises `ConfigInvalid`, `NoFiles` or `NotWritable`."""
        folder = self._files()
        files = {name: content.encode() for name, content in published.files.items()}
        author = Author(published.author, FLEET_AUTHOR, published.comment)
        await self._apply(lambda: folder.to_texts(files), author, None)

    async def last_manual_change_at(self) -> float | None:
        """When the files became what they are, seconds since 1970; None where the admin port of this gateway or of
        another one has made them so."""
        list_versions = self.history.list_versions(1)
        if self._folder is None or (list_versions and list_versions[0]["via"] != BY_FILE.via):
            return None
        return await asyncio.to_thread(self._folder.modified_at)

    def version(self, key: str | None) -> Version:
        """Raises `NotFound`. Blocks."""
        found = self.history.previous() if key is None else self.history.find(key)
        if found is not None:
            return found
        if key is None:
            raise NotFound("there is no version before the one in force")
        raise NotFound(f"no version is {key[:60]!r}: expected a number or a hash of GET /admin/policy/history")

    async def _apply(
        self, texts: Callable[[], list[PolicySource]], author: Author, match: str | None
    ) -> tuple[StagedPolicy, bool]:
        made: list[StagedPolicy] = []

        def stage(current: Policy) -> Policy:
            self._require_match(current, match)
            policy = check_policy(texts(), self._config)
            diff = unified_diff(file_contents(current.texts), file_contents(policy.texts))
            made.append(StagedPolicy(policy, diff, current.hash))
            return policy

        changed = await self._holder.change(stage, lambda policy: self._write(policy, author), author)
        if changed:
            fields = {"hash": made[0].policy.hash, "previous": made[0].previous, "author": author.name}
            AUDIT.info("policy", extra={"fields": {**fields, "via": author.via}})
            if author.via != FLEET_AUTHOR:
                self.changed(made[0].policy, made[0].previous, author, self._wall())
        return made[0], changed

    def _require_match(self, current: Policy, match: str | None) -> None:
        if match is None:
            return
        if match != current.hash:
            raise PolicyConflict(f"the policy in force is {current.hash}, not {match[:60]!r}: expected its hash")
        if self._hash_on_disk() != match:  # saved a moment ago, or faulty and therefore not in force
            raise PolicyConflict(f"the files have changed since policy {current.hash} was read from them")

    def _hash_on_disk(self) -> str | None:
        try:
            return hash_texts(self._files().texts())
        except ConfigInvalid:
            return None

    def _write(self, policy: Policy, author: Author) -> None:
        folder = self._files()
        after = {text.name: text.content for text in policy.texts}
        before = _folder_contents(folder)
        self.history.record_pending(PolicyChange(policy.hash, author, before, file_contents(policy.texts)))
        try:
            folder.write(after)
        except GatewayError:
            self.history.clear_pending()
            raise

    def _with_file(self, file: str | None, content: bytes) -> list[PolicySource]:
        """The files with this content in one of them; without a folder the content alone."""
        name = file or LAST_FILE
        if self._folder is None:
            return [PolicySource(name, content)]
        try:
            others = [text for text in self._folder.texts() if text.name != name]
        except ConfigInvalid as invalid:
            if any(Path(fault.file) == self._folder.path for fault in invalid.faults):
                others = []  # no folder, or none in it yet
            else:
                raise
        texts = [*others, *self._folder.to_texts({name: content})]
        return sorted(texts, key=lambda text: file_order(text.name))

    def _read_policy(self) -> Policy:
        return check_folder(self._files().path, self._config)

    def _files(self) -> PolicyFolder:
        if self._folder is None:
            raise NoFiles("this gateway runs without policy files (--upstream): expected one that has a configuration")
        return self._folder


def file_contents(texts: tuple[PolicySource, ...]) -> Mapping[str, str]:
    """Name -> content."""
    return {text.name: text.content.decode(errors="replace") for text in texts}


def open_history(config: Config, wall: Callable[[], float]) -> History:
    return History(config.data_dir / HISTORY_FOLDER, wall)


def recover_pending_change(config: Config, wall: Callable[[], float]) -> None:
    """Finishes what a gateway that ended had half done to the files; before they are read. Leaves them alone where
    somebody has changed them since. Blocks; raises `NotWritable`."""
    change = open_history(config, wall).pending()
    if change is None:
        return
    folder = PolicyFolder(config.policies)
    if change.is_partially_applied(_folder_contents(folder)):
        folder.write({name: content.encode() for name, content in change.after.items()})
        LOG.warning("a policy that was half written is whole now", extra={"fields": {"hash": change.hash}})


def _folder_contents(folder: PolicyFolder) -> Mapping[str, str]:
    try:
        return file_contents(tuple(folder.texts()))
    except ConfigInvalid:
        return {}
