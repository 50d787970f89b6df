"""Signatures of AWS by `botocore`: https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_sigv.html.

The credentials are those that the AWS command line would use. They are read again before they end.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from functools import partial
from typing import Any, NamedTuple

import botocore.session
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError, NoCredentialsError, ProfileNotFound
from botocore.loaders import Loader, create_loader

from gateway.config.errors import format_value
from gateway.errors import BadRequest
from gateway.features.workload_identity.regions import region_of
from gateway.features.workload_identity.settings import AwsIdentity
from gateway.features.workload_identity.thread_source import ThreadSource
from gateway.ports import Clock
from gateway.upstream.building import BackendCore
from gateway.upstream.http1.errors import NoCredentials
from gateway.upstream.http_client import UpstreamRequest, UpstreamResponse
from gateway.upstream.key_text import masked
from gateway.upstream.shared_token import SharedToken, Token

LOG = logging.getLogger("nearhit.upstreams")
CONNECT_S, READ_S = 3, 5  # of a call to the token service of AWS
MAX_LIFE_S = 24 * 3600  # of credentials, as far as the gateway looks
MAX_UPLOAD = 25 * 2**20  # bytes of a streamed body, which is read before it is signed: Bedrock accepts no larger one
MAX_INLINE = 512 * 1024  # bytes of a body that is hashed in the event loop, which takes half a millisecond
SKEW_S = 240.0  # between the clocks; AWS refuses five minutes
SESSION_NAME = "nearhit"
EXPECTED = "expected AWS_ACCESS_KEY_ID with a secret, a profile, a web identity, or the role of the machine"
SIGNED = frozenset({"authorization", "x-amz-date", "x-amz-security-token", "x-amz-content-sha256"})
# Without "Exception" at the end; empty for endpoints that name no error.
CREDENTIAL_ERRORS = frozenset({"", "ExpiredToken", "InvalidClientTokenId", "InvalidSignature", "UnrecognizedClient"})
TIMESTAMP = "%Y%m%dT%H%M%SZ"


class Signer(NamedTuple):
    """The credentials that sign a request. It is equal to another one if its credentials are."""

    access_key: str
    secret_key: str
    token: str | None
    region: str | None  # of the environment or the profile

    def __repr__(self) -> str:
        return "Signer(...)"


def aws_identity(core: BackendCore, where: str, setting: AwsIdentity, _key_header: str | None) -> AwsSignatures:
    """`aws_identity` implements `IdentityBuilder`."""
    source = ThreadSource("aws", partial(read_signer, setting, create_loader()))
    return AwsSignatures(SharedToken(source, core.clock, where), setting, core.clock)


def read_signer(setting: AwsIdentity, loader: Loader) -> Token[Signer]:
    """Return credentials. The session is a new one each time, because one that stays repeats what was refused. The
    `loader` keeps the descriptions of AWS's services, whose parsing would hold up other threads. Raise
    `NoCredentials`."""
    session = botocore.session.Session(profile=setting.profile)
    session.register_component("data_loader", loader)
    session.set_default_client_config(
        Config(connect_timeout=CONNECT_S, read_timeout=READ_S, retries={"total_max_attempts": 2})
    )
    try:
        region = setting.region or session.get_config_variable("region")
        credentials = session.get_credentials()
        if credentials is None:
            raise NoCredentials(f"there are none on this machine, {EXPECTED}")
        if setting.role is not None:
            return _assume(session, setting, region)
        frozen = credentials.get_frozen_credentials()
    except NoCredentialsError:
        raise NoCredentials(f"there are none on this machine, {EXPECTED}") from None
    except ProfileNotFound:
        raise NoCredentials(f"there is no profile {format_value(setting.profile)}") from None
    except ClientError as error:
        code = str(error.response.get("Error", {}).get("Code", ""))[:64]
        raise NoCredentials(f"AWS refuses to give any: {code}", masked(str(error))) from None
    except BotoCoreError as error:
        raise NoCredentials(f"they cannot be read ({type(error).__name__})", masked(str(error))) from None
    return Token(Signer(frozen.access_key, frozen.secret_key, frozen.token, region), _life_s(credentials))


def _assume(session: botocore.session.Session, setting: AwsIdentity, region: str | None) -> Token[Signer]:
    """Return the credentials of the role."""
    external = {} if setting.external_id is None else {"ExternalId": setting.external_id}
    client = session.create_client("sts", region_name=region or "us-east-1")
    try:
        answer = client.assume_role(RoleArn=setting.role, RoleSessionName=SESSION_NAME, **external)
    finally:
        client.close()
    given = answer["Credentials"]
    life_s = (given["Expiration"] - datetime.now(UTC)).total_seconds()
    return Token(Signer(given["AccessKeyId"], given["SecretAccessKey"], given["SessionToken"], region), life_s)


def _life_s(credentials: Any) -> float | None:
    """Return the seconds until credentials end, or None if they have no end. botocore only tells whether they end
    within a time."""
    ends_within = getattr(credentials, "refresh_needed", None)
    if ends_within is None or not ends_within(MAX_LIFE_S):
        return None
    low, high = 0, MAX_LIFE_S
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if ends_within(middle) else (middle, high)
    return float(low)


class AwsSignatures:
    """`AwsSignatures` implements `Identity`. It signs each request, and a repeated one again. A signature holds for
    five minutes, and covers the bytes that are sent."""

    def __init__(self, signers: SharedToken[Signer], setting: AwsIdentity, clock: Clock) -> None:
        self._signers = signers
        self._setting = setting
        self._clock = clock
        self._skew = timedelta()  # of the clock of AWS, against ours

    async def authorized(self, request: UpstreamRequest, origin: str, until: float) -> UpstreamRequest:
        signer = await self._signers.current(until)
        region = self._setting.region or region_of(origin) or signer.region
        if region is None:
            raise NoCredentials("identity aws: the region is unknown, expected the key 'region' or AWS_REGION")
        if any(name.lower() in SIGNED for name, _ in request.headers):  # of a client that signs by itself
            kept = [header for header in request.headers if header[0].lower() not in SIGNED]
            request = request._replace(headers=kept, opening=None)
        if not isinstance(request.body, bytes):
            request = request._replace(body=await _whole(request.body), length=None)
        now = datetime.fromtimestamp(self._clock.wall(), UTC) + self._skew
        arguments = request, origin, signer, self._setting.service, region, now
        is_long = isinstance(request.body, bytes) and len(request.body) > MAX_INLINE
        lines = await asyncio.to_thread(signed_lines, *arguments) if is_long else signed_lines(*arguments)
        return request._replace(extra_headers=(*request.extra_headers, *lines))

    async def renew(self, refused: UpstreamRequest, refusal: UpstreamResponse, until: float) -> bool:
        if refusal.status != 403:
            return False
        if self._corrects_clock(refused, refusal):
            return True
        signer = await self._signers.current(until)
        if f"Credential={signer.access_key}/" not in _signed_header(refused, "authorization"):
            return True  # another request has brought new ones
        return _is_about_credentials(refusal) and await self._signers.renewed(signer, until)

    async def close(self) -> None:
        await self._signers.close()

    def _corrects_clock(self, refused: UpstreamRequest, refusal: UpstreamResponse) -> bool:
        """Take the time of AWS from a refusal. Return whether the refused signature has another time."""
        try:
            theirs = parsedate_to_datetime(_header(refusal.headers, "date"))
            signed = datetime.strptime(_signed_header(refused, "x-amz-date"), TIMESTAMP).replace(tzinfo=UTC)
            if abs((theirs - signed).total_seconds()) < SKEW_S:
                return False
        except (ValueError, TypeError):  # no date, or one without a zone
            return False
        self._skew = theirs - datetime.fromtimestamp(self._clock.wall(), UTC)
        fields = {"seconds": round(self._skew.total_seconds())}
        LOG.warning("the clock of this machine differs from that of AWS", extra={"fields": fields})
        return True


def _header(headers: Iterable[tuple[str, str]], wanted: str) -> str:
    return next((value for name, value in headers if name.lower() == wanted), "")


def _signed_header(request: UpstreamRequest, wanted: str) -> str:
    """Return a header that `signed_lines` has put on a request."""
    return _header(reversed(request.extra_headers), wanted)


def _is_about_credentials(refusal: UpstreamResponse) -> bool:
    """Return whether a refusal may be about the credentials. It is none of a permission that they lack, which others
    would lack, too."""
    kind = _header(refusal.headers, "x-amzn-errortype").partition(":")[0].removesuffix("Exception")
    return kind in CREDENTIAL_ERRORS


async def _whole(body: AsyncIterator[bytes]) -> bytes:
    """Return all of a streamed body, since a signature covers it. Raise `BadRequest` if it is too long."""
    data = bytearray()
    async for piece in body:
        data += piece
        if len(data) > MAX_UPLOAD:
            raise BadRequest(f"the body is larger than {MAX_UPLOAD} bytes, which is the most that the gateway signs")
    return bytes(data)


class _Signature(SigV4Auth):  # type: ignore[misc]
    """A signature at a time that is given: botocore takes the one of the machine, which may be wrong."""

    def add_auth(self, request: Any, now: datetime | None = None) -> None:
        request.context["timestamp"] = (now or datetime.now(UTC)).strftime(TIMESTAMP)
        self._modify_request_before_signing(request)
        to_sign = self.string_to_sign(request, self.canonical_request(request))
        self._inject_signature_to_request(request, self.signature(to_sign, request))


def signed_lines(
    request: UpstreamRequest, origin: str, signer: Signer, service: str, region: str, now: datetime
) -> list[tuple[str, str]]:
    """Return the headers that authorize a request whose body is whole.

    They sign the method, the target, the host and the body. Other headers are left to the way to AWS, where a proxy may
    change them.
    """
    signed = AWSRequest(request.method, origin + request.target, data=request.body or None)
    _Signature(signer, service, region).add_auth(signed, now)
    lines: Mapping[str, str] = signed.headers
    return list(lines.items())
