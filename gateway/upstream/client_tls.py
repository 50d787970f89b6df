"""TLS to a backend with authorities and a client certificate of its own."""

from __future__ import annotations

import logging
import ssl
from pathlib import Path
from typing import Any

from gateway.config.backend_transport import BackendTls

LOG = logging.getLogger("nearhit.upstreams")


class ClientTls(ssl.SSLContext):
    """`ClientTls` presents the current client certificate of its files, as cert-manager renews it.

    If key and certificate do not match, as during a replacement, the old pair stays in use. The authorities are read
    once: they decide whom the gateway trusts.
    """

    _files: BackendTls
    _times: tuple[int, ...]

    @classmethod
    def of(cls, files: BackendTls) -> ClientTls:
        """Return the context of these files. Raise `OSError`, of which `ssl.SSLError` is one."""
        context = cls(ssl.PROTOCOL_TLS_CLIENT)
        context._files, context._times = files, ()
        if files.ca is None:
            context.load_default_certs(ssl.Purpose.SERVER_AUTH)
        else:
            context.load_verify_locations(cafile=files.ca)
        if files.certificate is not None:
            context._times = context._times_now()
            context.load_cert_chain(files.certificate, files.key, password=_no_password)
        context.set_alpn_protocols(["http/1.1"])
        return context

    def wrap_bio(self, *arguments: Any, **options: Any) -> ssl.SSLObject:
        """Begin a handshake."""
        if self._files.certificate is not None and (now := self._times_now()) != self._times:
            self._times = now
            self._reload(self._files.certificate)
        return super().wrap_bio(*arguments, **options)

    def _reload(self, certificate: Path) -> None:
        try:
            # A pair that does not match would stay half loaded, so another context tries it first.
            ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_cert_chain(certificate, self._files.key, password=_no_password)
            self.load_cert_chain(certificate, self._files.key, password=_no_password)
        except OSError as error:
            fields = {"certificate": str(certificate), "error": error.strerror or type(error).__name__}
            LOG.warning("the client certificate of a backend cannot be reloaded", extra={"fields": fields})

    def _times_now(self) -> tuple[int, ...]:
        return tuple(map(_modified, (self._files.certificate, self._files.key)))


def _modified(path: Path | None) -> int:
    try:
        return 0 if path is None else path.stat().st_mtime_ns
    except OSError:
        return 0


def _no_password() -> str:
    """Refuse a key with a password, for which OpenSSL would ask at the terminal."""
    return ""
