"""An API key in a file, which may be replaced at any time.

Kubernetes replaces a mounted secret by renaming a symbolic link, and Vault's agent by renaming the file. So each
request asks the file system whether the path leads to another file, which takes microseconds.
"""

from __future__ import annotations

import logging
from pathlib import Path

from gateway.ports import Clock
from gateway.upstream.building import BackendCore
from gateway.upstream.http1.errors import NoCredentials
from gateway.upstream.http_client import UpstreamRequest, UpstreamResponse
from gateway.upstream.key_text import read_key
from gateway.upstream.shared_token import token_in, with_token

LOG = logging.getLogger("nearhit.upstreams")

Signature = tuple[int, int, int, int]  # device, number, size, time of change in nanoseconds
NO_FILE: Signature = (0, 0, 0, 0)


def file_identity(core: BackendCore, where: str, setting: Path, key_header: str | None) -> FileIdentity:
    """`file_identity` implements `IdentityBuilder` for `api_key_file`."""
    return FileIdentity(setting, key_header, core.clock, where)


class FileIdentity:
    """`FileIdentity` implements `Identity` with the key in a file.

    A file that cannot be read any more, or that is half written, does not end a key that has served.
    """

    def __init__(self, path: Path, header: str | None, clock: Clock, where: str) -> None:
        self._path = path
        self._header = header
        self._clock = clock
        self._where = where
        self._signature: Signature | None = None  # of the file that was read last
        self._key: str | None = None
        self._fault = NoCredentials("")  # of the last read, if there is no key

    async def authorized(self, request: UpstreamRequest, origin: str, until: float) -> UpstreamRequest:
        signature = self._signature_now()
        if signature != self._signature:
            self._read(signature)
        if self._key is None:
            raise self._fault
        return with_token(request, self._key, self._header)

    async def renew(self, refused: UpstreamRequest, refusal: UpstreamResponse, until: float) -> bool:
        if refusal.status != 401:
            return False
        self._read(self._signature_now())  # a file system may not tell two changes within a second apart
        return self._key is not None and self._key != token_in(refused)

    async def close(self) -> None:
        """There is nothing to end."""

    def _signature_now(self) -> Signature:
        try:
            status = self._path.stat()
        except OSError:
            return NO_FILE
        return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns

    def _read(self, signature: Signature) -> None:
        changed, self._signature = signature != self._signature, signature
        try:
            self._key = read_key(self._path, self._clock.wall())
        except NoCredentials as fault:
            self._fault = NoCredentials(f"api_key_file: {fault}")
            if changed:
                fields = {"key": self._where, "file": str(self._path), "error": str(fault)}
                LOG.warning("the credentials of a backend cannot be read", extra={"fields": fields})
