"""Workload identities of Azure and Google by their libraries, and how a library that hangs or fails is bounded."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, ClassVar, Literal
from urllib.parse import parse_qsl

import pytest
from aiohttp import web

from gateway.config.identities import IDENTITIES
from gateway.config.load import read_config
from gateway.features.workload_identity.settings import AwsIdentity
from gateway.features.workload_identity.thread_source import ThreadSource
from gateway.upstream.http1.errors import NoCredentials
from gateway.upstream.shared_token import Token
from tests.fixtures.aws import LACKING
from tests.fixtures.gateways import NO_CACHE, config_of, gateway_of
from tests.fixtures.upstream import Upstream, serving
from tests.fixtures.waiting import until

needs_libraries = pytest.mark.skipif(bool(LACKING), reason=LACKING)


class Cloud:
    """The token endpoints of both clouds. It numbers its tokens."""

    def __init__(self) -> None:
        self.upstream = Upstream("cloud")
        self.upstream.answer = self._answer
        self.status = 200

    async def _answer(self, request: web.Request, _: dict[str, Any]) -> web.StreamResponse:
        if self.status != 200:
            return web.json_response({"error": "invalid_grant", "message": "token-0 is wrong"}, status=self.status)
        token = {"access_token": f"token-{len(self.upstream.calls)}", "token_type": "Bearer"}
        if request.path.endswith("/msi"):
            return web.json_response({**token, "expires_on": str(int(time.time()) + 3600)})
        kind = "urn:ietf:params:oauth:token-type:access_token"
        return web.json_response({**token, "expires_in": 3600, "issued_token_type": kind})


@pytest.fixture
async def cloud(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> AsyncIterator[Cloud]:
    cloud = Cloud()
    async with serving(cloud.upstream):
        (tmp_path / "token").write_text("of-the-pod")
        pool = "//iam.googleapis.com/projects/1/locations/global/workloadIdentityPools/p/providers/k8s"
        federation = {
            "type": "external_account",
            "audience": pool,
            "subject_token_type": "urn:ietf:params:oauth:token-type:jwt",
            "token_url": cloud.upstream.url + "/token",
            "credential_source": {"file": str(tmp_path / "token")},
        }
        (tmp_path / "google.json").write_text(json.dumps(federation))
        monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "google.json"))
        monkeypatch.setenv("IDENTITY_ENDPOINT", cloud.upstream.url + "/msi")  # a managed identity of App Service
        monkeypatch.setenv("IDENTITY_HEADER", "h")
        yield cloud


SETTINGS = {
    "azure": {"type": "azure", "client_id": "of-a-user"},
    "google": {"type": "google"},
}


@needs_libraries
@pytest.mark.parametrize("kind", SETTINGS)
async def test_a_backend_gets_tokens_of_the_cloud_and_new_ones_after_a_401(
    kind: str, cloud: Cloud, upstream: Upstream, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    accepted = {"Bearer token-1"}

    async def answer(request: web.Request, call: dict[str, Any]) -> web.StreamResponse:
        if request.headers["Authorization"] not in accepted:
            return web.json_response({"error": {"message": "no"}}, status=401)
        return await upstream._default(request, upstream.calls[-1].body)

    upstream.answer = answer
    backends = {"main": {"adapter": "openai", "url": upstream.url, "identity": SETTINGS[kind]}}
    async with gateway_of(config_of(tmp_path / "data", backends), NO_CACHE) as served:
        for text in ("a", "b"):
            assert (await served.chat(text, headers={"Authorization": "Bearer of-the-client"})).status == 200
        accepted.add("Bearer token-2")
        accepted.remove("Bearer token-1")
        assert (await served.chat("c")).status == 200
    first, _ = cloud.upstream.calls
    if kind == "azure":
        assert "resource=https://cognitiveservices.azure.com&client_id=of-a-user" in first.path
        assert first.headers["X-IDENTITY-HEADER"] == "h"
    else:
        form = dict(parse_qsl(first.body.decode()))
        assert (form["subject_token"], form["scope"]) == (
            "of-the-pod",
            "https://www.googleapis.com/auth/cloud-platform",
        )
    assert "token-" not in caplog.text


REFUSALS = {"azure": "Microsoft Entra ID gives none, expected a workload", "google": "Google refuses them"}


@needs_libraries
@pytest.mark.parametrize("kind", SETTINGS)
async def test_a_client_reads_which_identity_fails_and_not_the_words_of_the_cloud(
    kind: str, cloud: Cloud, upstream: Upstream, tmp_path: Path
) -> None:
    cloud.status = 400
    backends = {"main": {"adapter": "openai", "url": upstream.url, "identity": SETTINGS[kind]}}
    async with gateway_of(config_of(tmp_path / "data", backends), NO_CACHE) as served:
        answer = await served.chat("a")
    assert answer.status == 502
    assert f"no credentials for backend 'main': identity {kind}: {REFUSALS[kind]}" in answer.json["error"]["message"]
    assert "token-" not in answer.body.decode()
    assert not upstream.calls


async def test_a_library_that_hangs_holds_one_thread_and_no_request() -> None:
    over, runs = threading.Event(), list[int]()

    def read() -> Token[str]:
        runs.append(1)
        over.wait(60)
        return Token("t")

    source = ThreadSource("slow", read, timeout_s=0.01)
    with pytest.raises(NoCredentials, match=r"identity slow: nothing came within 0\.01 s"):
        await source.read()
    with pytest.raises(NoCredentials, match="identity slow: an earlier read has not ended"):
        await source.read()
    assert runs == [1]
    over.set()
    await until(lambda: all(each.name != "nearhit-identity-slow" for each in threading.enumerate()))
    assert (await ThreadSource("slow", read, timeout_s=60).read()).value == "t"


async def test_the_next_read_may_follow_at_once() -> None:
    source = ThreadSource("quick", lambda: Token("t"))
    for _ in range(200):
        await source.read()


async def test_a_library_that_fails_is_named_by_its_error_and_its_words_are_for_the_log() -> None:
    def read() -> Token[str]:
        raise LookupError("the secret abcdefghijklmnopqrst123 is wrong")

    with pytest.raises(NoCredentials, match=r"identity odd: the library failed \(LookupError\)") as raised:
        await ThreadSource("odd", read).read()
    assert raised.value.detail == "the secret *** is wrong"


class Absent(AwsIdentity):
    """An identity whose library is not installed."""

    module: ClassVar[str] = "no_such_cloud.identity"
    type: Literal["aws"] = "aws"


def test_a_library_that_is_not_installed_is_a_fault_that_names_the_extra(tmp_path: Path) -> None:
    assert [*Absent().faults(tmp_path)] == [
        (("type",), "needs the package botocore, which is not installed, expected pip install 'nearhit[aws]'")
    ]


FAULTS = {
    "{type: aws, region: Frankfurt}": "identity.region: expected a region of AWS such as us-east-1, got 'Frankfurt'",
    "{type: aws, role: admin}": "identity.role: expected the ARN of a role of IAM, got 'admin'",
    "{type: aws, secret: x}": "identity.secret: unknown key",
    "{type: google, audience: mine}": "identity.audience: expected a URL such as",
    "{type: azure, scopes: x}": "identity.scopes: unknown key, did you mean 'scope'?",
    "{type: gcp}": "identity.type: expected one of: oauth, azure, google, aws, got 'gcp'",
}


@needs_libraries
@pytest.mark.parametrize(("identity", "sentence"), FAULTS.items(), ids=FAULTS)
def test_check_tells_each_fault_of_a_cloud(tmp_path: Path, identity: str, sentence: str) -> None:
    file = tmp_path / "config.yaml"
    backend = f"{{adapter: openai, url: https://host/v1, identity: {identity}}}"
    file.write_text(f"version: 1\nbackends:\n  main: {backend}\n")
    faults = [f"{'.'.join(map(str, each.path))}: {each.message}" for each in read_config(file, {}).faults]
    assert len(faults) == 1
    assert faults[0].startswith(f"backends.main.{sentence}")


def test_no_library_of_a_cloud_is_imported_with_the_settings() -> None:
    """The settings are read by `check`, the schema and each start that uses a type."""
    code = (
        "import sys; from gateway.config.identities import IDENTITIES; [*map(IDENTITIES.load, IDENTITIES.names())]\n"
        "print([name for name in sys.modules if name.startswith(('botocore', 'azure', 'google.auth', 'requests'))])"
    )
    assert set(IDENTITIES.names()) >= {"oauth", "azure", "google", "aws"}
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert output.strip() == "[]"
