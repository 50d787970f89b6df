"""An HTTP client that puts the gateway's credentials on each request, and tries once more with new ones."""

from __future__ import annotations

from dataclasses import dataclass

from gateway.upstream.http1.errors import ExchangeFailed
from gateway.upstream.http_client import REFUSALS, HttpClient, Identity, UpstreamRequest, UpstreamResponse


@dataclass(slots=True, eq=False)
class AuthorizedClient:
    """`AuthorizedClient` implements `HttpClient`.

    An endpoint that refuses credentials has done nothing else, so a refused request is safe to repeat. It is repeated
    once, if its body is still there and the identity has other credentials. They are renewed in any case: the next
    request may be an upload, too.
    """

    client: HttpClient
    identity: Identity
    origin: str

    async def send(self, request: UpstreamRequest, deadline: float) -> UpstreamResponse:
        sent = await self.identity.authorized(request, self.origin, deadline)
        response = await self.client.send(sent, deadline)
        if response.status not in REFUSALS:
            return response
        try:
            is_renewed = await self.identity.renew(sent, response, deadline)
            if not is_renewed or not isinstance(request.body, bytes):
                return response
            again = await self.identity.authorized(request, self.origin, deadline)
        except ExchangeFailed:  # the refusal tells more
            return response
        except BaseException:
            response.close()
            raise
        response.finish(deadline)
        try:
            return await self.client.send(again, deadline)
        except ExchangeFailed as error:
            raise error.after_resend() from None

    async def close(self) -> None:
        await self.identity.close()
        await self.client.close()
