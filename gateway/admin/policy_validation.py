"""From policy files to a policy that may be put in force: read, checked, and held against its own expectations."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from gateway.admin.policy_tests import disappointments
from gateway.config import Config
from gateway.config.errors import ConfigInvalid
from gateway.config.policy.load import policy_files, read_policy, read_texts
from gateway.config.policy.model import Policy, Text


def staged(texts: Sequence[Text], config: Config) -> Policy:
    """The policy of these files, in their order. Raises `ConfigInvalid` with every fault."""
    adapters = adapters_of(config)
    reading = read_policy(texts, config.backends, folder=config.policies, adapters=adapters)
    if reading.policy is None:
        raise ConfigInvalid(reading.faults)
    if faults := disappointments(reading.policy, adapters):
        raise ConfigInvalid(faults)
    return reading.policy


def adapters_of(config: Config) -> dict[str, str]:
    """Of each backend."""
    return {name: backend.adapter for name, backend in config.backends.items()}


def staged_folder(folder: Path, config: Config) -> Policy:
    """The same of all files of a folder."""
    texts, faults = read_texts(policy_files(folder))
    if faults:  # where a file is missing nobody knows which rule is the last
        reading = read_policy(texts, config.backends, ends=False)
        raise ConfigInvalid([*faults, *reading.faults])
    return staged(texts, config)
