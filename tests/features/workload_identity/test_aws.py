"""Requests that botocore signs: what the provider accepts, and credentials that end, change and are refused."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from aiohttp import web

from gateway.adapters.system.clock import SystemClock
from gateway.cli.doctor.network import inspect_backends
from gateway.errors import BadRequest
from gateway.features.workload_identity.regions import region_of
from gateway.features.workload_identity.settings import AwsIdentity
from gateway.observability.telemetry import Telemetry
from gateway.upstream.building import BackendCore
from gateway.upstream.http1.errors import NoCredentials
from gateway.upstream.http_client import UpstreamRequest
from tests.fixtures.aws import LACKING, signature_fault
from tests.fixtures.clock import FakeClock
from tests.fixtures.gateways import NO_CACHE, config_of, gateway_of
from tests.fixtures.upstream import Upstream, serving

pytestmark = pytest.mark.skipif(bool(LACKING), reason=LACKING)

SECRET, TOKEN = "s3cr3t/of+aws", "session//token=="
CLIENT = {"Authorization": "Bearer of-the-client", "X-Amz-Date": "20200101T000000Z", "X-Amz-Security-Token": "theirs"}
SCOPE = "us-east-1/bedrock"


class Amazon:
    """A service of AWS, and the endpoint from which a container gets its credentials."""

    def __init__(self) -> None:
        self.service = Upstream("bedrock")
        self.service.answer = self._answer
        self.container = Upstream("container")
        self.container.answer = self._credentials
        self.valid = {f"AKID{n}" for n in range(9)}  # access keys
        self.faults: list[str] = []
        self.refusal = "ExpiredTokenException:http://internal"
        self.date: datetime | None = None  # by its clock
        self.life = timedelta(hours=6)

    def backend(self, **identity: Any) -> dict[str, Any]:
        settings = {"type": "aws", "region": "us-east-1", **identity}
        return {"main": {"adapter": "openai", "url": self.service.url, "identity": settings}}

    async def _credentials(self, request: web.Request, _: dict[str, Any]) -> web.StreamResponse:
        end = (datetime.now(UTC) + self.life).strftime("%Y-%m-%dT%H:%M:%SZ")
        key = f"AKID{len(self.container.calls)}"
        return web.json_response({"AccessKeyId": key, "SecretAccessKey": SECRET, "Token": TOKEN, "Expiration": end})

    async def _answer(self, request: web.Request, _: dict[str, Any]) -> web.StreamResponse:
        call = self.service.calls[-1]
        secrets = dict.fromkeys(self.valid, SECRET)
        fault = signature_fault(call.method, call.path, call.headers, call.body, secrets, SCOPE)
        signed = datetime.strptime(call.headers["X-Amz-Date"], "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
        now = self.date or datetime.now(UTC)
        if not fault and abs((now - signed).total_seconds()) > 300:
            fault = "Signature expired"
        if fault:
            self.faults.append(fault)
            headers = {"x-amzn-errortype": self.refusal, "Date": format_datetime(now, usegmt=True)}
            return web.json_response({"message": fault}, status=403, headers=headers)
        return await self.service._default(request, call.body)


@pytest.fixture
async def amazon(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> AsyncIterator[Amazon]:
    amazon = Amazon()
    async with serving(amazon.service), serving(amazon.container):
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE", "AWS_REGION"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", amazon.container.url + "/creds")
        monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
        monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
        monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        yield amazon


@pytest.mark.parametrize("client", ["own", "aiohttp"])
async def test_the_provider_accepts_what_the_gateway_signs_and_no_client_credentials_reach_it(
    amazon: Amazon, tmp_path: Path, caplog: pytest.LogCaptureFixture, client: str
) -> None:
    backends = {"main": {**amazon.backend()["main"], "client": client}}
    with caplog.at_level(logging.DEBUG, "nearhit"):
        async with gateway_of(config_of(tmp_path, backends), NO_CACHE) as served:
            for text in ("Grüße, 世界", "long " * 200_000):
                for stream in (False, True):
                    answer = await served.chat(text, headers=CLIENT, stream=stream)
                    assert answer.status == 200, amazon.faults
            # A target with parameters out of order, an encoded colon and slash, and a doubled slash.
            for path in ("/v1/models?b=2&a=1&a=0&c", "/model/arn%3Aaws%3Ax%2Fy:0/invoke", "/a//b/../c", "/v1/x%20y~z"):
                await served.get(path, CLIENT)
            shown = await (await served.session.get(served.admin_url + "/admin/backends")).text()
    assert not amazon.faults
    assert len(amazon.service.calls) == 8
    assert len(amazon.container.calls) == 1
    for call in amazon.service.calls:
        assert "of-the-client" not in str(call.headers)
        assert call.headers["X-Amz-Security-Token"] == TOKEN
        assert call.headers["X-Amz-Date"] != CLIENT["X-Amz-Date"]
    for secret in (SECRET, TOKEN, "AKID1"):
        assert secret not in shown + caplog.text


async def test_a_body_that_was_streamed_is_read_before_it_is_signed_up_to_a_bound(
    amazon: Amazon, tmp_path: Path
) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(3):
            yield b"x" * 1000

    async with (
        gateway_of(config_of(tmp_path, amazon.backend()), NO_CACHE) as served,
        served.session.post(served.url + "/v1/files", data=pieces()) as response,
    ):
        await response.read()
    assert not amazon.faults
    assert amazon.service.calls[-1].body == b"x" * 3000


async def test_credentials_that_ended_are_read_once_for_all_requests_and_each_is_signed_again(
    amazon: Amazon, tmp_path: Path
) -> None:
    async with gateway_of(config_of(tmp_path, amazon.backend()), NO_CACHE) as served:
        assert (await served.chat("first")).status == 200
        amazon.valid.remove("AKID1")
        answers = await asyncio.gather(*(served.chat(str(i), stream=bool(i % 2)) for i in range(8)))
    assert {each.status for each in answers} == {200}
    assert len(amazon.container.calls) == 2
    assert set(amazon.faults) == {"unknown access key"}
    assert len(amazon.faults) <= 8


async def test_a_file_of_credentials_that_another_program_renews_is_read_again(
    amazon: Amazon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """openclaw 77551, agno 3968, RooCode 2469: only a restart brought the new credentials."""
    monkeypatch.delenv("AWS_CONTAINER_CREDENTIALS_FULL_URI")
    file, lines = (
        tmp_path / "credentials",
        "[prod]\naws_access_key_id={}\naws_secret_access_key={}\naws_session_token={}\n",
    )
    file.write_text(lines.format("AKID1", SECRET, TOKEN))
    async with gateway_of(config_of(tmp_path / "data", amazon.backend(profile="prod")), NO_CACHE) as served:
        assert (await served.chat("first")).status == 200
        amazon.valid.remove("AKID1")
        file.write_text(lines.format("AKID2", SECRET, TOKEN))
        assert (await served.chat("second")).status == 200
    assert amazon.faults == ["unknown access key"]


async def test_credentials_are_read_again_before_they_end(amazon: Amazon, tmp_path: Path) -> None:
    clock = FakeClock(wall=datetime.now(UTC).timestamp())
    async with gateway_of(config_of(tmp_path, amazon.backend()), NO_CACHE, clock=clock) as served:
        await served.chat("first")
        clock.advance(3600 * 5)
        amazon.date = datetime.now(UTC) + timedelta(hours=5)
        assert (await served.chat("in time")).status == 200
        clock.advance(3600 * 2)
        amazon.date += timedelta(hours=2)
        assert (await served.chat("late")).status == 200
    assert not amazon.faults
    assert len(amazon.container.calls) == 2


async def test_a_permission_that_is_lacking_is_no_reason_for_other_credentials(amazon: Amazon, tmp_path: Path) -> None:
    amazon.valid.clear()
    amazon.refusal = "AccessDeniedException"
    async with gateway_of(config_of(tmp_path, amazon.backend()), NO_CACHE) as served:
        for i in range(3):
            assert (await served.chat(str(i))).status == 403
        assert (len(amazon.service.calls), len(amazon.container.calls)) == (3, 1)
        amazon.refusal = "UnrecognizedClientException"
        for i in range(5):
            assert (await served.chat(f"again {i}")).status == 403
    # Three requests are sent again, each with new credentials. The others come too soon after them.
    assert (len(amazon.service.calls), len(amazon.container.calls)) == (3 + 5 + 3, 4)


async def test_a_wrong_clock_of_this_machine_takes_the_time_of_the_provider(amazon: Amazon, tmp_path: Path) -> None:
    amazon.date = datetime.now(UTC) + timedelta(hours=1)
    amazon.refusal = "InvalidSignatureException"
    async with gateway_of(config_of(tmp_path, amazon.backend()), NO_CACHE) as served:
        answers = await asyncio.gather(*(served.chat(str(i)) for i in range(4)))
        assert {each.status for each in answers} == {200}
        late = len(amazon.faults)
        assert (await served.chat("later")).status == 200
    assert len(amazon.faults) == late <= 4
    assert len(amazon.container.calls) == 1


async def test_a_role_is_assumed_and_a_refusal_is_said_without_the_words_of_the_provider(
    amazon: Amazon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens = Upstream("sts")
    end = (datetime.now(UTC) + timedelta(hours=1)).strftime("%Y-%m-%dT%H:%M:%SZ")
    given = (
        f"<AccessKeyId>AKID7</AccessKeyId><SecretAccessKey>{SECRET}</SecretAccessKey>"
        f"<SessionToken>t</SessionToken><Expiration>{end}</Expiration>"
    )
    texts = [
        f"<AssumeRoleResponse><AssumeRoleResult><Credentials>{given}</Credentials></AssumeRoleResult>"
        "</AssumeRoleResponse>",
        f"<ErrorResponse><Error><Code>AccessDenied</Code><Message>no {SECRET}</Message></Error></ErrorResponse>",
    ]

    async def answer(request: web.Request, _: dict[str, Any]) -> web.StreamResponse:
        text = texts[min(len(tokens.calls), 2) - 1]
        return web.Response(text=text, status=403 if "Error" in text else 200, content_type="text/xml")

    tokens.answer = answer
    role = {"role": "arn:aws:iam::123456789012:role/models", "external_id": "partner"}
    async with serving(tokens):
        monkeypatch.setenv("AWS_ENDPOINT_URL_STS", tokens.url)
        async with gateway_of(config_of(tmp_path / "a", amazon.backend(**role)), NO_CACHE) as served:
            assert (await served.chat("hi")).status == 200
        async with gateway_of(config_of(tmp_path / "b", amazon.backend(**role)), NO_CACHE) as served:
            refused = await served.chat("hi")
    assert "ExternalId=partner" in tokens.calls[0].body.decode()
    assert refused.status == 502
    assert "AWS refuses to give any: AccessDenied" in refused.json["error"]["message"]
    assert SECRET not in refused.body.decode()


async def test_doctor_says_which_credentials_a_backend_has_and_why_there_are_none(
    amazon: Amazon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = config_of(tmp_path, amazon.backend())
    found = await inspect_backends(config, {})
    assert [each.found for each in found] == [f"main: {amazon.service.url} answers, and identity aws gives credentials"]
    monkeypatch.delenv("AWS_CONTAINER_CREDENTIALS_FULL_URI")
    (fault,) = await inspect_backends(config, {})
    assert "identity aws: there are none on this machine, expected AWS_ACCESS_KEY_ID with a secret" in fault.found
    (fault,) = await inspect_backends(config_of(tmp_path, amazon.backend(profile="prod")), {})
    assert "there is no profile 'prod'" in fault.found


REGIONS = {
    "https://bedrock-runtime.us-east-1.amazonaws.com": "us-east-1",
    "https://bedrock-runtime-fips.us-gov-west-1.amazonaws.com": "us-gov-west-1",
    "https://vpce-0a1-b2.bedrock-runtime.eu-central-1.vpce.amazonaws.com": "eu-central-1",
    "https://bedrock-runtime.cn-north-1.amazonaws.com.cn": "cn-north-1",
    "https://bedrock-mantle.ap-southeast-2.api.aws": "ap-southeast-2",
    "https://abc.execute-api.us-west-2.amazonaws.com:443": "us-west-2",
    "https://us-east-1.example.com": None,
    "https://bedrock.internal": None,
    "http://127.0.0.1:8080": None,
}


@pytest.mark.parametrize(("origin", "region"), REGIONS.items(), ids=REGIONS)
def test_the_host_names_the_region(origin: str, region: str | None) -> None:
    assert region_of(origin) == region


@pytest.fixture
def aws() -> ModuleType:
    return import_module("gateway.features.workload_identity.aws")


def test_botocore_makes_the_same_signature(aws: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """The only difference to `SigV4Auth.add_auth` is the time."""
    auth, now = import_module("botocore.auth"), datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    monkeypatch.setattr(auth, "get_current_datetime", lambda: now)
    origin, target = "https://bedrock-runtime.us-east-1.amazonaws.com", "/model/a.b-v1%3A0/converse?x=1"
    signer = aws.Signer("AKID", SECRET, TOKEN, None)
    theirs = import_module("botocore.awsrequest").AWSRequest("POST", origin + target, data=b"{}")
    auth.SigV4Auth(signer, "bedrock", "us-east-1").add_auth(theirs)
    request = UpstreamRequest("POST", target, [], b"{}")
    assert aws.signed_lines(request, origin, signer, "bedrock", "us-east-1", now) == list(theirs.headers.items())


async def test_an_upload_that_is_too_long_and_a_region_that_nothing_names_are_said(
    aws: ModuleType, amazon: Amazon, tmp_path: Path
) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        while True:
            yield bytes(2**20)

    until = asyncio.get_running_loop().time() + 60
    core = BackendCore(config_of(tmp_path, amazon.backend()), {}, SystemClock(), Telemetry())
    for region, origin, error, words in (
        ("us-east-1", "http://h", BadRequest, "larger than 26214400 bytes, which is the most that the gateway signs"),
        (None, "http://h", NoCredentials, "the region is unknown, expected the key 'region' or AWS_REGION"),
    ):
        identity = aws.aws_identity(core, "w", AwsIdentity(type="aws", region=region), None)
        with pytest.raises(error, match=words):
            await identity.authorized(UpstreamRequest("POST", "/", [], pieces()), origin, until)
        await identity.close()
