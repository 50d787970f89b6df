"""TLS of the data port and the gRPC port: one certificate for both, reloaded when its files change."""

from __future__ import annotations

import logging
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from gateway.config.schema import TlsConfig

LOG = logging.getLogger("nearhit")
Made = TypeVar("Made")


class CertificateUnusable(Exception):
    """The files do not make a usable certificate. The message names the file and the reason."""


class ReloadingCertificate:
    """`ReloadingCertificate` serves the current certificate of its files.

    To renew it, replace the files, as ACME clients and cert-manager do. New connections use the new certificate. If key
    and certificate do not match, as during a replacement, the old pair stays in use. The clients' CA is read once,
    because it decides who may connect and must not change without a restart.
    """

    def __init__(self, config: TlsConfig) -> None:
        """Load the certificate. Raise `CertificateUnusable`."""
        self._config = config
        self._ca = None if config.client_ca is None else _read(config.client_ca)
        self._loaded_times = self.modification_times()
        self._current = self._load()

    def context(self) -> ssl.SSLContext:
        """Return the context for the data port."""
        outer = self._current
        outer.sni_callback = self._renew  # the only hook in a handshake; it runs with or without a server name
        return outer

    def _renew(self, connection: ssl.SSLSocket | ssl.SSLObject, name: str | None, outer: ssl.SSLContext) -> None:
        now = self.modification_times()
        if now != self._loaded_times:
            self._loaded_times = now
            self._current = self.reload_or_keep(self._load) or self._current
        if self._current is not outer:
            connection.context = self._current

    def reload_or_keep(self, make: Callable[[], Made]) -> Made | None:
        try:
            context = make()
        except CertificateUnusable as error:
            fields = {"fault": str(error)}
            LOG.error("the certificate could not be reloaded, the old one stays in use", extra={"fields": fields})
            return None
        LOG.info("certificate reloaded", extra={"fields": {"certificate": str(self._config.certificate)}})
        return context

    def _load(self) -> ssl.SSLContext:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.set_alpn_protocols(["http/1.1"])
        config = self._config
        try:
            context.load_cert_chain(config.certificate, config.key, password=_no_password)
        except (ssl.SSLError, OSError, _KeyEncrypted) as error:
            raise CertificateUnusable(_describe_failure(config, error)) from None
        if self._ca is not None:
            try:
                context.load_verify_locations(cadata=self._ca.decode("ascii"))
            except (ssl.SSLError, ValueError):
                raise CertificateUnusable(f"{config.client_ca} holds no certificates in PEM form") from None
            context.verify_mode = ssl.CERT_REQUIRED
        return context

    @property
    def client_ca(self) -> bytes | None:
        """The clients' CA in PEM, or None if clients need no certificate."""
        return self._ca

    def pair(self) -> tuple[bytes, bytes]:
        """Return the private key and the certificate chain in PEM, which match. Raise `CertificateUnusable`."""
        self._load()
        return _read(self._config.key), _read(self._config.certificate)

    def modification_times(self) -> tuple[int, ...]:
        """Return the files' modification times in nanoseconds, 0 for a missing file. A change means that the files were
        replaced."""
        return tuple(_modified_ns(path) for path in (self._config.certificate, self._config.key))


class _KeyEncrypted(Exception):
    """The key needs a password, and nobody can enter it."""


def _no_password() -> str:
    raise _KeyEncrypted


def _modified_ns(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise CertificateUnusable(f"{path} cannot be read: {error.strerror}") from None


def _describe_failure(config: TlsConfig, error: Exception) -> str:
    for path in (config.certificate, config.key):
        _read(path)  # a missing file gives an error with its name, which OpenSSL omits
    if isinstance(error, _KeyEncrypted):
        return f"{config.key} is encrypted, expected a key without a password that only the gateway may read"
    if getattr(error, "reason", None) == "KEY_VALUES_MISMATCH":
        return f"{config.key} is not the key of {config.certificate}"
    return f"{config.certificate} and {config.key}: expected a certificate chain and its private key in PEM form"
