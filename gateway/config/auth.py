"""Who may ask, who may operate, and how that is written down: `auth` and `audit` of `config.yaml`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

from pydantic import Field

from gateway.config.fields import EnvironmentName, KeyHash, Name
from gateway.written.units import Duration, Size
from gateway.written.validation import NOT_EMPTY, Problem, Section, one_of


class Auth(Section):
    """Who may ask, and who is who."""

    mode: Annotated[Literal["passthrough", "keys"], one_of("passthrough", "keys")] = "passthrough"
    keys: Mapping[Name, Annotated[tuple[KeyHash, ...], Field(strict=False), NOT_EMPTY]] = Field(default={})
    key_grace: Duration = 600.0  # how long keys of the store that are known are good where it does not answer
    admin_token_env: EnvironmentName | None = None

    @classmethod
    def problems(cls, given: Mapping[str, Any]) -> Iterator[Problem]:
        keys, mode = given.get("keys", {}), given.get("mode", "passthrough")
        if mode == "passthrough" and keys:
            yield Problem("keys", "no other mode reads these, expected mode: keys beside them")
        tenants = keys if isinstance(keys, dict) else {}
        owners: dict[str, str] = {}
        for tenant, hashes in tenants.items():
            listed = {item for item in hashes if isinstance(item, str)} if isinstance(hashes, list) else set()
            for key in listed:
                if (owner := owners.setdefault(key, tenant)) != tenant:
                    yield Problem("keys", f"{owner!r} and {tenant!r} share a key, expected one tenant a key")


class Audit(Section):
    """The trail of what was done on the admin port: `audit.jsonl` in `data_dir`."""

    max_size: Size = 16 * 2**20  # of one file
    files: Annotated[int, Field(ge=1, le=1_000)] = 8  # in all; then the oldest goes
