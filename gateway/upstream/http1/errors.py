"""Errors of an exchange with a server. Their messages go to logs and clients, so they name no URL and no header."""

from __future__ import annotations


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
