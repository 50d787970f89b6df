"""TLS of the gRPC port, with the certificate of the data port."""

from __future__ import annotations

import grpc

from gateway.adapters.system.tls_reloader import Certificate


def credentials_of(certificate: Certificate) -> grpc.ServerCredentials:
    """Those of the files as they are at each handshake, as far as they are usable. Raises `CertificateUnusable`."""
    seen, wanted = certificate.stamps(), _configuration(certificate)

    def fetch() -> grpc.ServerCertificateConfiguration | None:
        """Asked by gRPC's own thread, once a handshake."""
        nonlocal seen
        now = certificate.stamps()
        if now == seen:
            return None
        seen = now
        return certificate.unless_unusable(lambda: _configuration(certificate))

    asks = certificate.client_ca is not None
    return grpc.dynamic_ssl_server_credentials(wanted, fetch, require_client_authentication=asks)


def _configuration(certificate: Certificate) -> grpc.ServerCertificateConfiguration:
    pair = certificate.pair()  # checked: gRPC says nothing of one that does not match, and every handshake would fail
    return grpc.ssl_server_certificate_configuration([pair], root_certificates=certificate.client_ca)
