"""Why an exchange with a server came to nothing. The messages are words for logs and clients: no URL, no header."""

from __future__ import annotations


class ExchangeFailed(Exception):
    """`sent` False: it is certain that nothing of the request has reached the server."""

    sent = True


class ConnectFailed(ExchangeFailed):
    """No connection: the name is not known, nobody listens, or the server's certificate is not trusted."""

    sent = False


class ConnectTimedOut(ConnectFailed):
    """No connection within the time for it: name, TCP and TLS together."""


class PoolExhausted(ConnectFailed):
    """All connections are in use, and as many requests wait for one as may."""


class Disconnected(ExchangeFailed):
    """The connection ended before a byte of the answer came."""


class Broken(ExchangeFailed):
    """The connection ended within an answer."""


class MalformedAnswer(ExchangeFailed):
    """What came is no HTTP/1.1, could be read in two ways, or exceeds a bound."""


class TimedOut(ExchangeFailed):
    """Nothing came in time."""


class UploadFailed(ExchangeFailed):
    """The body that was to be sent is not as long as its head says."""
