"""Errors of an exchange with a server. Their messages go to logs and clients, so they name no URL and no header."""

from __future__ import annotations

import socket
import ssl


class ExchangeFailed(Exception):
    """`ExchangeFailed` is the base of all errors. If `sent` is False, no byte of the request has reached the server."""

    sent = True

    def after_resend(self) -> ExchangeFailed:
        """Return the error of a second attempt: the first one had sent the request."""
        self.sent = True
        return self


class ConnectFailed(ExchangeFailed):
    """No connection: the name does not resolve, the port refuses, or the certificate is not trusted."""

    sent = False


class ConnectTimedOut(ConnectFailed):
    """No connection in time: name lookup, TCP and TLS together."""


class NoCredentials(ExchangeFailed):
    """The request was not sent, because there are no credentials for it. `detail` is for the log alone: the output of
    others may be in it."""

    sent = False

    def __init__(self, message: str, detail: str = "") -> None:
        super().__init__(message)
        self.detail = detail


class PoolExhausted(ConnectFailed):
    """All connections are in use, and the queue for one is full."""


class Disconnected(ExchangeFailed):
    """The connection closed before the first byte of the response."""


class ConnectionBroken(ExchangeFailed):
    """The connection closed within a response."""


class MalformedAnswer(ExchangeFailed):
    """The response is not valid HTTP/1.1, is ambiguous, or exceeds a bound."""


class TimedOut(ExchangeFailed):
    """No data arrived in time."""


class UploadFailed(ExchangeFailed):
    """The request body is longer or shorter than its Content-Length."""


def describe_connect_error(error: OSError) -> str:
    """Describe why there is no connection, without an address."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        if error.reason == "WRONG_VERSION_NUMBER":
            return "it does not speak TLS: is its url http:// rather than https://?"
        return f"the TLS handshake failed: {error.reason or 'no reason given'}"
    if isinstance(error, socket.gaierror):
        return "its name cannot be resolved"
    if isinstance(error, ConnectionRefusedError):
        return "connection refused"
    return f"no connection ({type(error).__name__})"
