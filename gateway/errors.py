"""The error tree. `steps.error_boundary` alone turns `GatewayError` and its subclasses into responses. The others never
leave the step that can do without the part which failed."""

from __future__ import annotations

from gateway.priority import ShedReason


class GatewayError(Exception):
    """The request ends with an error response: `status`, a machine-readable `kind`, a sentence for the client.
    `forwarded`: whether it was put to a backend; `param`: where in the body the fault is, such as
    `messages[1].content`."""

    status = 500
    kind = "internal_error"
    forwarded = False

    def __init__(self, message: str, *, retry_after_s: int | None = None, param: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.retry_after_s = retry_after_s
        self.param = param
        self.headers: tuple[tuple[str, str], ...] = ()  # beside Retry-After


class BadRequest(GatewayError):
    status = 400
    kind = "invalid_request_error"


class Unauthorized(GatewayError):
    status = 401
    kind = "authentication_error"


class TooManyAuthFailures(GatewayError):
    """From an address that has shown too many credentials that are none."""

    status = 429
    kind = "rate_limit_error"

    def __init__(self, *, retry_after_s: int) -> None:
        message = f"too many credentials that are not known came from this address: try again in {retry_after_s} s"
        super().__init__(message, retry_after_s=retry_after_s)


class Forbidden(GatewayError):
    """It is known who asks, and he may not."""

    status = 403
    kind = "permission_error"


class NotFound(GatewayError):
    status = 404
    kind = "not_found_error"


class Conflict(GatewayError):
    """An idempotency key that stands for another request (draft-ietf-httpapi-idempotency-key-header-07 section 2.7)."""

    status = 422
    kind = "idempotency_error"


class TooManyJobs(GatewayError):
    """Of one tenant."""

    status = 429
    kind = "rate_limit_error"


class PayloadTooLarge(GatewayError):
    status = 413
    kind = "request_too_large"


class RequestTimeout(GatewayError):
    """The client did not send its body in time."""

    status = 408
    kind = "timeout_error"


class LimitReached(GatewayError):
    """A limit of the policy. `asker` says for whom: who is somebody else may ask for himself."""

    status = 429
    kind = "rate_limit_error"

    def __init__(self, message: str, *, retry_after_s: int, asker: str, headers: tuple[tuple[str, str], ...]) -> None:
        super().__init__(message, retry_after_s=retry_after_s)
        self.asker = asker
        self.headers = headers


class Overloaded(GatewayError):
    status = 503
    kind = "overloaded_error"


class TooManyInflight(Overloaded):
    """The gateway is at `server.max_inflight`."""

    def __init__(self) -> None:
        super().__init__("the gateway is at its limit of concurrent requests", retry_after_s=1)


class OnlyIfCached(GatewayError):
    """The client asked for a cached answer or none (RFC 9111 section 5.2.1.7)."""

    status = 504
    kind = "not_cached"


class BudgetExceeded(GatewayError):
    """No backend is predicted to answer within the latency budget, and the policy would rather say so at once."""

    status = 504
    kind = "latency_budget_error"


class BackendError(GatewayError):
    """A backend gave no usable answer before its first byte. `retryable`: another backend may be asked. `sent` False:
    it is certain that nothing of the request has reached it."""

    status = 502
    kind = "upstream_error"
    forwarded = True

    def __init__(self, message: str, *, retryable: bool = True, status: int = 502, sent: bool = True) -> None:
        super().__init__(message)
        self.retryable = retryable
        self.status = status
        self.sent = sent


class ModelNotReady(BackendError):
    """The upstream is there, its model is not: no call succeeds until the model is loaded again."""


class BackendOverloaded(BackendError):
    """The gateway's own limit on what a backend gets at once: that says nothing of the backend's health."""

    kind = "overloaded_error"
    forwarded = False

    def __init__(self, message: str, reason: ShedReason, retry_after_s: int) -> None:
        theirs = reason is ShedReason.TENANT_SHARE  # others of less appetite are let in
        super().__init__(message, status=429 if theirs else 503, sent=False)
        if theirs:
            self.kind = "rate_limit_error"
        self.reason = reason
        self.retry_after_s = retry_after_s


class UnsupportedByBackend(BackendError):
    """The backend cannot do what this call asks, and says so before it begins: another one may be asked, and it says
    nothing of the backend's health."""

    kind = "invalid_request_error"
    forwarded = False

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message, status=400, sent=False)
        self.param = param


class AttemptTimedOut(BackendError):
    """An upstream was given up before its first byte, while another one could still answer in time."""

    def __init__(self, message: str) -> None:
        super().__init__(message, status=504)


class RateLimited(BackendError):
    """Every upstream of a backend wants to be left alone for a while."""

    kind = "rate_limit_error"
    forwarded = False

    def __init__(self, message: str, retry_after_s: int) -> None:
        super().__init__(message, status=429, sent=False)
        self.retry_after_s = retry_after_s


class ServeStale(BackendError):
    """No backend is predicted to answer within the latency budget, and a stored answer past its time stands by."""

    forwarded = False

    def __init__(self, message: str) -> None:
        super().__init__(message, retryable=False, status=504)


class UpstreamStreamError(Exception):
    """An answer broke after its first byte; nothing is retried, the client is told in the stream."""


class MalformedResponse(Exception):
    """An answer that is not in its dialect's form, or that is an error in the form of an answer."""


class ModelControlDisabled(Exception):
    """A server does not let its models be loaded and unloaded."""


class StoreUnavailable(Exception):
    """The store did not answer in time, or not at all. Requests go on as misses."""


class IndexUnavailable(StoreUnavailable):
    """The vector index failed or did not answer in time. Who can do without the store can do without it."""


class EmbedderUnavailable(Exception):
    """No embedding within the embedder's bounds. Requests go on without a semantic lookup."""


class ModelUnavailable(Exception):
    """A model on a server gives no answer, or none that can be used; the message says why, and no text is in it."""


class SnapshotInvalid(ValueError):
    """What was kept of what a route had learnt does not fit this gateway; the route starts from the calibration."""


class StartupError(Exception):
    """The gateway cannot start; the message is one sentence for the operator."""
