"""`PolicyManager` changes the policy of a running gateway: it checks, writes, applies, records and rolls back."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from gateway.config import Config
from gateway.config.errors import ConfigError, ConfigInvalid
from gateway.config.policy.files import PolicyFolder
from gateway.config.policy.history import BY_FILE, Author, History, PolicyChange, Version, unified_diff
from gateway.config.policy.load import LAST_FILE, file_order, hash_texts, policy_files, read_policy, read_texts
from gateway.config.policy.model import Policy, PolicySource
from gateway.config.policy.reloader import OnReload, PolicyHolder, Prepare, import_watch, ready
from gateway.errors import GatewayError, NotFound
from gateway.ports import PublishedPolicy


# Reading and checking of policy files, including the expectations in them.
def check_policy(texts: Sequence[PolicySource], config: Config) -> Policy:
    """Return the policy of these files, which are in order. Raise `ConfigInvalid` with every fault."""
    adapters = backend_adapters(config)
    reading = read_policy(texts, config.backends, folder=config.policies, adapters=adapters)
    if reading.policy is None:
        raise ConfigInvalid(reading.faults)
    if reading.policy.expectations and (faults := _tests().failed_expectations(reading.policy, adapters)):
        raise ConfigInvalid(faults)
    return reading.policy


def _tests() -> ModuleType:
    """Import what runs the tests of a policy. Most policies have none."""
    return import_module("gateway.admin.policy_tests")


def backend_adapters(config: Config) -> dict[str, str]:
    """Return the adapter of each backend."""
    return {name: backend.adapter for name, backend in config.backends.items()}


def check_folder(folder: Path, config: Config) -> Policy:
    """Return the policy of all files in a folder. Raise `ConfigInvalid` with every fault."""
    texts, faults = read_texts(policy_files(folder))
    if faults:  # without every file, the last rule is unknown
        reading = read_policy(texts, config.backends, ends=False)
        raise ConfigInvalid([*faults, *reading.faults])
    return check_policy(texts, config)


LOG = logging.getLogger("nearhit")

AUDIT = logging.getLogger("nearhit.audit")

HISTORY_FOLDER = "policy-history"  # in data_dir

FLEET_AUTHOR = "fleet"  # `via` of a policy that another gateway on the store published

Changed = Callable[[Policy, str, Author, float], None]
"""A listener for policies from the admin port. Arguments: policy, hash of the previous one, author, time."""


def _no_listener(*_: object) -> None:
    """Do nothing: there is no other gateway."""


class NoFiles(GatewayError):
    """The gateway runs without policy files."""

    status = 409
    kind = "no_policy_files"


class PolicyConflict(GatewayError):
    """The policy in force differs from the one that the change is based on."""

    status = 412
    kind = "policy_changed"


@dataclass(frozen=True, slots=True)
class StagedPolicy:
    """A checked policy, with its difference from the policy in force."""

    policy: Policy
    diff: str
    previous: str  # hash of the policy in force

    def as_json(self) -> dict[str, Any]:
        """Return the policy for JSON, without its files."""
        return {
            "hash": self.policy.hash,
            "previous": self.previous,
            "routes": [route.name for route in self.policy.routes],
            "warnings": [warning.as_json() for warning in self.policy.warnings],
            "diff": self.diff,
        }


class PolicyManager:
    """`PolicyManager` changes the policy in force.

    Without `folder` there are no files, so the policy cannot be changed. `prepare` opens what a policy needs. `swap`
    puts a policy in force at once.
    """

    def __init__(
        self,
        config: Config,
        folder: Path | None,
        initial: Policy,
        swap: OnReload,
        wall: Callable[[], float],
        prepare: Prepare = ready,
    ) -> None:
        self._config = config
        self._folder = None if folder is None else PolicyFolder(folder)
        if folder is not None:
            import_watch()
        self.history = open_history(config, wall)
        self._holder = PolicyHolder(initial, self._read_policy, swap, self.history.record, prepare)
        self._wall = wall
        self.changed: Changed = _no_listener

    @property
    def is_editable(self) -> bool:
        """True if the policy has files."""
        return self._folder is not None

    @property
    def current(self) -> Policy:
        """The policy in force."""
        return self._holder.current

    async def begin(self) -> None:
        """Read the history and add the initial policy to it."""
        await asyncio.to_thread(self.history.open)
        if self._folder is not None:
            await asyncio.to_thread(self.history.record, self._holder.current, BY_FILE)

    async def watch(self) -> None:
        """Reload the policy when its files change, until cancelled."""
        folder = self._files()
        await self._holder.watch(folder.path)

    async def reload(self) -> tuple[ConfigError, ...]:
        """Read the files again. Return their faults."""
        return await self._holder.reload()

    async def validate(self, file: str | None, content: bytes) -> StagedPolicy:
        """Return the policy that this content of a file would result in. Raise `ConfigInvalid`."""
        current = self._holder.current
        policy = await asyncio.to_thread(lambda: check_policy(self._with_file(file, content), self._config))
        return StagedPolicy(
            policy, unified_diff(file_contents(current.texts), file_contents(policy.texts)), current.hash
        )

    async def apply(
        self, file: str | None, content: bytes, author: Author, match: str | None
    ) -> tuple[StagedPolicy, bool]:
        """Write a file and put the policy in force. Return it, and whether anything has changed.

        `match` is the hash of the policy that the change is based on, or None for any. Raise `ConfigInvalid` with every
        fault, `PolicyConflict`, `NoFiles` or `NotWritable`; the policy in force then stays.
        """
        self._files()
        return await self._apply(lambda: self._with_file(file, content), author, match)

    async def roll_back(self, key: str | None, author: Author, match: str | None) -> tuple[StagedPolicy, bool]:
        """Put the files of an earlier version in force, as a new version.

        `key` is the number or hash of the version, or None for the one before the current one. Raise the errors of
        `apply`, and `NotFound`.
        """
        folder = self._files()
        version = await asyncio.to_thread(self.version, key)
        files = {name: content.encode() for name, content in version.files.items()}
        return await self._apply(lambda: folder.to_texts(files), author, match)

    async def adopt(self, published: PublishedPolicy) -> None:
        """Put a policy in force that another gateway published. Raise `ConfigInvalid`, `NoFiles` or `NotWritable`."""
        folder = self._files()
        files = {name: content.encode() for name, content in published.files.items()}
        author = Author(published.author, FLEET_AUTHOR, published.comment)
        await self._apply(lambda: folder.to_texts(files), author, None)

    async def last_manual_change_at(self) -> float | None:
        """Return the time of the last change of the files, in seconds since 1970.

        Return None if the last change came from the admin port of this gateway or of another one.
        """
        list_versions = self.history.list_versions(1)
        if self._folder is None or (list_versions and list_versions[0]["via"] != BY_FILE.via):
            return None
        return await asyncio.to_thread(self._folder.modified_at)

    def version(self, key: str | None) -> Version:
        """Return a version of the history, without `key` the one before the current one. Raise `NotFound`. Block."""
        version = self.history.previous() if key is None else self.history.find(key)
        if version is not None:
            return version
        if key is None:
            raise NotFound("there is no version before the one in force")
        raise NotFound(f"no version is {key[:60]!r}: expected a number or a hash of GET /admin/policy/history")

    async def _apply(
        self, texts: Callable[[], list[PolicySource]], author: Author, match: str | None
    ) -> tuple[StagedPolicy, bool]:
        stages: list[StagedPolicy] = []

        def stage(current: Policy) -> Policy:
            self._require_match(current, match)
            policy = check_policy(texts(), self._config)
            diff = unified_diff(file_contents(current.texts), file_contents(policy.texts))
            stages.append(StagedPolicy(policy, diff, current.hash))
            return policy

        changed = await self._holder.change(stage, lambda policy: self._write(policy, author), author)
        if changed:
            fields = {"hash": stages[0].policy.hash, "previous": stages[0].previous, "author": author.name}
            AUDIT.info("policy", extra={"fields": {**fields, "via": author.via}})
            if author.via != FLEET_AUTHOR:
                self.changed(stages[0].policy, stages[0].previous, author, self._wall())
        return stages[0], changed

    def _require_match(self, current: Policy, match: str | None) -> None:
        if match is None:
            return
        if match != current.hash:
            raise PolicyConflict(f"the policy in force is {current.hash}, not {match[:60]!r}: expected its hash")
        if self._hash_on_disk() != match:  # saved a moment ago, or faulty
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
        """Return all files, one of them with this content. Without a folder, return the content only."""
        name = file or LAST_FILE
        if self._folder is None:
            return [PolicySource(name, content)]
        try:
            others = [text for text in self._folder.texts() if text.name != name]
        except ConfigInvalid as invalid:
            if any(Path(fault.file) == self._folder.path for fault in invalid.faults):
                others = []  # there is no folder yet, or it is empty
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
    """Return the contents of the files by name."""
    return {text.name: text.content.decode(errors="replace") for text in texts}


def open_history(config: Config, wall: Callable[[], float]) -> History:
    """Return the history of policies in `data_dir`."""
    return History(config.data_dir / HISTORY_FOLDER, wall)


def recover_pending_change(config: Config, wall: Callable[[], float]) -> None:
    """Finish a change of the files that a former process began. Call it before the files are read.

    Files that have changed since stay as they are. Block. Raise `NotWritable`.
    """
    change = open_history(config, wall).pending()
    if change is None:
        return
    folder = PolicyFolder(config.policies)
    if change.is_partially_applied(_folder_contents(folder)):
        folder.write({name: content.encode() for name, content in change.after.items()})
        LOG.warning("a half-written policy is complete now", extra={"fields": {"hash": change.hash}})


def _folder_contents(folder: PolicyFolder) -> Mapping[str, str]:
    try:
        return file_contents(tuple(folder.texts()))
    except ConfigInvalid:
        return {}
