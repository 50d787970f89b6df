"""A certificate for a gateway on this machine, and a context that trusts it."""

from __future__ import annotations

import contextlib
import ssl
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import trustme


@dataclass(frozen=True, slots=True)
class ServerCertificate:
    """`section` is `server.tls` of a configuration. `trust` is for clients."""

    section: dict[str, str]
    trust: ssl.SSLContext


@contextlib.contextmanager
def server_certificate() -> Iterator[ServerCertificate]:
    """Yield a certificate for 127.0.0.1, whose files are removed at the end."""
    with tempfile.TemporaryDirectory() as folder:
        authority, trust = trustme.CA(), ssl.create_default_context()
        authority.configure_trust(trust)
        issued = authority.issue_cert("127.0.0.1")
        certificate, key = Path(folder) / "tls.crt", Path(folder) / "tls.key"
        certificate.write_bytes(b"".join(blob.bytes() for blob in issued.cert_chain_pems))
        key.write_bytes(issued.private_key_pem.bytes())
        yield ServerCertificate({"certificate": str(certificate), "key": str(key)}, trust)
