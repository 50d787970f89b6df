"""The example of a feature, installed and removed with pip, next to the commands and in front of an upstream."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from tests.fixtures.gateways import Answer
from tests.fixtures.processes import served_by_process, write_config
from tests.fixtures.upstream import Upstream

ROOT = Path(__file__).parents[2]
POLICY = """
version: 1
routes:
  - name: default
    match: {}
    cache: {exact: {ttl: 1h}}
    forbidden_words: [kumquat, a]
    route: {backend: main}
"""


class Environment:
    """A virtual environment that also has this checkout and its dependencies."""

    def __init__(self, folder: Path) -> None:
        self.python = str(folder / "bin" / "python")
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)

    def pip(self, *arguments: str) -> None:
        subprocess.run([sys.executable, "-m", "pip", "--python", self.python, "-q", *arguments], check=True)

    def nearhit(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [self.python, "-m", "gateway", *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.fixture
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Environment:
    """An environment in which the package of the example is installed."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join((str(ROOT), sysconfig.get_path("purelib"))))
    environment = Environment(tmp_path / "environment")
    package = shutil.copytree(ROOT / "examples" / "feature", tmp_path / "package")  # pip writes into it
    environment.pip("install", "--no-deps", "--no-build-isolation", str(package))
    return environment


def text_of(answer: Answer) -> str:
    return answer.body.decode()


async def test_a_feature_of_a_package_is_there_while_the_package_is_installed(
    environment: Environment, upstream: Upstream, tmp_path: Path
) -> None:
    config = write_config(tmp_path, {"main": {"adapter": "openai", "url": upstream.url}}, POLICY)
    request = tmp_path / "request.json"
    request.write_text(json.dumps({"model": "m", "messages": [{"role": "user", "content": "a Kumquat, please"}]}))

    checked = environment.nearhit("check", "--config", str(config))
    assert checked.returncode == 0, checked.stdout + checked.stderr
    explained = environment.nearhit("explain", str(request), "--config", str(config))
    assert "forbidden words  kumquat, a" in explained.stdout, explained.stdout + explained.stderr
    steps = environment.nearhit("explain", str(request), "--config", str(config), "--steps").stdout
    assert re.search("^ForbiddenWords +which prompts are refused$", steps, re.MULTILINE)
    assert '"forbidden_words"' in environment.nearhit("schema", "policy").stdout

    async with served_by_process(config, python=environment.python) as served:
        refused = await served.chat("a kumquat, please")
        assert (refused.status, "kumquat" in text_of(refused)) == (403, True)
        assert upstream.chats == []
        assert (await served.chat("one durian, please")).status == 200
        async with served.session.get(served.admin_url + "/metrics") as response:
            assert 'nearhit_forbidden_words_total{route="default"} 1.0' in await response.text()

    environment.pip("uninstall", "-y", "nearhit-forbidden-words")
    checked = environment.nearhit("check", "--config", str(config))
    assert checked.returncode == 1
    assert "routes[0].forbidden_words: unknown key, expected one of: name, match, cache, route" in checked.stdout


def test_a_faulty_rule_of_a_package_is_named_with_its_place(environment: Environment, tmp_path: Path) -> None:
    faulty = POLICY.replace("[kumquat, a]", "{words: [kumquat], case: on}")
    config = write_config(tmp_path, {"main": {"adapter": "openai", "url": "http://127.0.0.1:9/v1"}}, faulty)
    checked = environment.nearhit("check", "--config", str(config))
    assert "policy.yaml:7: routes[0].forbidden_words.case: unknown key, expected words" in checked.stdout


async def test_a_feature_that_cannot_be_opened_leaves_the_last_good_policy_in_force(
    environment: Environment, upstream: Upstream, tmp_path: Path
) -> None:
    module = next((tmp_path / "environment").rglob("nearhit_forbidden_words/__init__.py"))
    module.write_text(module.read_text().replace("return ForbiddenWordsRuntime(", "return no_such_name("))
    plain = POLICY.replace("    forbidden_words: [kumquat, a]\n", "")
    config = write_config(tmp_path, {"main": {"adapter": "openai", "url": upstream.url}}, plain)
    async with served_by_process(config, python=environment.python) as served:
        async with served.session.post(served.admin_url + "/admin/policy?file=policy.yaml", data=POLICY) as response:
            answer = await response.text()
            assert response.status == 422, answer
            assert "the feature cannot be opened for route default: name" in answer, answer
        assert (await served.chat("a kumquat, please")).status == 200


def test_the_doctor_asks_the_features_of_the_policy(environment: Environment, tmp_path: Path) -> None:
    config = write_config(tmp_path, {"main": {"adapter": "openai", "url": "http://127.0.0.1:9/v1"}}, POLICY)
    report = environment.nearhit("doctor", "--config", str(config)).stdout
    assert "route default: forbidden_words" in report
    assert "forbid longer words" in report
