"""The error tree. Only `steps.error_boundary` turns `GatewayError` and its subclasses into responses. The other errors
never leave the step that can work without the failed part."""

from __future__ import annotations

from gateway.priority import ShedReason


class GatewayError(Exception):
    """The request ends with an error response: `status`, a machine-readable `kind`, and a sentence for the client.

    `forwarded` tells whether it was sent to a backend. `param` names the faulty place in the body, such as
    `messages[1].content`.
    """

    status = 500
    kind = "internal_error"
    forwarded = False

    def __init__(self, message: str, *, retry_after_s: int | None = None, param: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.retry_after_s = retry_after_s
        self.param = param
        self.headers: tuple[tuple[str, str], ...] = ()  # besides Retry-After


class BadRequest(GatewayError):
    status = 400
    kind = "invalid_request_error"


class Unauthorized(GatewayError):
    status = 401
    kind = "authentication_error"


class TooManyAuthFailures(GatewayError):
    """An address has sent too many unknown credentials."""

    status = 429
    kind = "rate_limit_error"

    def __init__(self, *, retry_after_s: int) -> None:
        message = f"too many unknown credentials from this address: try again in {retry_after_s} s"
        super().__init__(message, retry_after_s=retry_after_s)


class Forbidden(GatewayError):
    """The client is authenticated but not permitted."""

    status = 403
    kind = "permission_error"


class NotFound(GatewayError):
    status = 404
    kind = "not_found_error"


class ContentBlocked(GatewayError):
    """The guard of the route refuses the content of a request or of its answer. The status is that of OpenAI's and
    Azure's own filters, so that no client tries again."""

    status = 400
    kind = "content_blocked"


class GuardUnavailable(GatewayError):
    """The guard of the route gave no verdict, and the policy lets nothing pass without one."""

    status = 503
    kind = "guard_unavailable"


class Conflict(GatewayError):
    """An idempotency key is used again with a different request (draft-ietf-httpapi-idempotency-key-header-07, section
    2.7)."""

    status = 422
    kind = "idempotency_error"


class TooManyJobs(GatewayError):
    """One tenant has too many jobs in the queue."""

    status = 429
    kind = "rate_limit_error"


class PayloadTooLarge(GatewayError):
    status = 413
    kind = "request_too_large"


class UnsupportedEncoding(GatewayError):
    """The body has a content coding that the gateway does not read. The response names those that it does (RFC 9110
    section 12.5.3)."""

    status = 415
    kind = "invalid_request_error"

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.headers = (("Accept-Encoding", "gzip, deflate, br, zstd"),)


class RequestTimeout(GatewayError):
    """The client did not send its body in time."""

    status = 408
    kind = "timeout_error"


class LimitReached(GatewayError):
    """A limit of the policy is reached. `asker` names the party that the limit counts; another party may still call."""

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
    """The client asked for a cached answer or none (RFC 9111, section 5.2.1.7)."""

    status = 504
    kind = "not_cached"


class BudgetExceeded(GatewayError):
    """No backend is predicted to answer within the latency budget, and the policy prefers an immediate error."""

    status = 504
    kind = "latency_budget_error"


class BackendError(GatewayError):
    """A backend gave no usable answer before its first byte.

    If `retryable`, another backend may be tried. Unless `sent`, certainly no byte of the request has reached the
    backend.
    """

    status = 502
    kind = "upstream_error"
    forwarded = True

    def __init__(self, message: str, *, retryable: bool = True, status: int = 502, sent: bool = True) -> None:
        super().__init__(message)
        self.retryable = retryable
        self.status = status
        self.sent = sent


class ModelNotReady(BackendError):
    """The upstream is reachable but its model is not loaded. Every call fails until the model is loaded again."""


class BackendOverloaded(BackendError):
    """The gateway's own limit on concurrent calls to a backend. This says nothing about the backend's health."""

    kind = "overloaded_error"
    forwarded = False

    def __init__(self, message: str, reason: ShedReason, retry_after_s: int) -> None:
        theirs = reason is ShedReason.TENANT_SHARE  # only this tenant is over its share; others are still admitted
        super().__init__(message, status=429 if theirs else 503, sent=False)
        if theirs:
            self.kind = "rate_limit_error"
        self.reason = reason
        self.retry_after_s = retry_after_s


class UnsupportedByBackend(BackendError):
    """The backend cannot do what this call asks, and says so before it begins. Another backend may be tried. This says
    nothing about the backend's health."""

    kind = "invalid_request_error"
    forwarded = False

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message, status=400, sent=False)
        self.param = param


class AttemptTimedOut(BackendError):
    """The gateway gave up on an upstream before its first byte, while another one could still answer in time."""

    def __init__(self, message: str) -> None:
        super().__init__(message, status=504)


class RateLimited(BackendError):
    """Every upstream of a backend has asked not to be called for a while."""

    kind = "rate_limit_error"
    forwarded = False

    def __init__(self, message: str, retry_after_s: int) -> None:
        super().__init__(message, status=429, sent=False)
        self.retry_after_s = retry_after_s


class ServeStale(BackendError):
    """No backend is predicted to answer within the latency budget, and a stale entry is available."""

    forwarded = False

    def __init__(self, message: str) -> None:
        super().__init__(message, retryable=False, status=504)


class UpstreamStreamError(Exception):
    """An answer broke off after its first byte. Nothing is retried; the client learns of it in the stream."""

    kind = "upstream_error"

    def as_response(self) -> GatewayError:
        """Return the error of a client that has got nothing of the answer."""
        return BackendError(str(self), retryable=False)


class AnswerWithheld(UpstreamStreamError):
    """The guard of the route ends an answer, for the reason `cause`."""

    def __init__(self, cause: ContentBlocked | GuardUnavailable) -> None:
        super().__init__(cause.message)
        self.cause, self.kind = cause, cause.kind

    def as_response(self) -> GatewayError:
        return self.cause


class MalformedResponse(Exception):
    """An answer does not have the form of its dialect, or is an error in the form of an answer.

    The message may quote the answer, whose text may have lone surrogates: they become question marks.
    """

    def __init__(self, message: str) -> None:
        super().__init__(message.encode("utf-8", "replace").decode())


class ModelControlDisabled(Exception):
    """A server does not allow its models to be loaded and unloaded."""


class StoreUnavailable(Exception):
    """The store failed or did not answer in time. Requests continue as misses."""


class IndexUnavailable(StoreUnavailable):
    """The vector index failed or did not answer in time. Code that can work without the store can work without the
    index."""


class EmbedderUnavailable(Exception):
    """The embedder gave no embedding within its bounds. Requests continue without a semantic lookup."""


class ModelUnavailable(Exception):
    """A model on a server gave no usable answer. The message tells why and contains no request text."""


class SnapshotInvalid(ValueError):
    """The saved learning state of a route does not fit this gateway. The route starts from the calibration."""


class StartupError(Exception):
    """The gateway cannot start. The message is one sentence for the operator."""
