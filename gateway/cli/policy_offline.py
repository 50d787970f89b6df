"""What a policy file would make of the files of a configuration, without a gateway."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from gateway.admin.policy_manager import PolicyLife
from gateway.admin.policy_validation import staged_folder
from gateway.config.errors import ConfigInvalid
from gateway.config.load import load_config
from gateway.config.policy.model import Policy


async def validated(config_path: Path, name: str, content: bytes) -> dict[str, Any]:
    """As the admin port answers. Raises `ConfigInvalid`."""
    config = load_config(config_path, os.environ)
    try:
        current = staged_folder(config.policies, config)
    except ConfigInvalid:  # the file may be what puts that right
        current = Policy((), "none")
    life = PolicyLife(config, config.policies, current, lambda *_: None, time.time)
    return {"ok": True, **(await life.validate(name, content)).as_json()}
