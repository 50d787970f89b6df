"""What a command does not use is not imported."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.fixtures.gateways import EXACT_CACHE
from tests.fixtures.processes import write_config

# Only a missing model, several workers, `tune: {every: 1d}` or an operation of the admin port needs these.
UNUSED = (
    "gateway.adapters.embedding.hashing",
    "gateway.admin.event_stream",
    "gateway.admin.explain_pair",
    "gateway.admin.explanation",
    "gateway.admin.policy",
    "gateway.admin.policy_tests",
    "gateway.admin.static_files",
    "gateway.cli.admin_client",
    "gateway.cli.first_build",
    "gateway.dialects.anthropic",
    "gateway.dialects.openai.responses",
    "gateway.features.workers.supervisor",
    "gateway.features.audit",
    "gateway.features.gpu_index",
    "gateway.features.jobs",
    "gateway.features.keys",
    "gateway.features.limits",
    "gateway.features.oidc",
    "gateway.features.recorder",
    "gateway.features.screen",
    "gateway.features.simulation",
    "gateway.features.tool_calls",
    "gateway.features.tuning",
    "gateway.model_build",
    "gateway.observability.spans",
    "gateway.routing.complexity",
    "gateway.routing.route_score",
    "gateway.routing.tier_controller",
    "gateway.steps.traffic_log",
    "rich",
)


# Modules of the gateway that a serve imports until its ports are open. Whoever adds a feature adds none.
WITH_BOTH_CACHES, EXACT_ONLY = 354, 282

# Starts a gateway on the folder that it is given, with the policy in it or else as `nearhit serve --upstream` does.
SERVE = """
import asyncio, sys
from pathlib import Path
from gateway.cli.commands import build_parser
build_parser(["serve"])
from gateway.admin.policy_manager import check_folder
from gateway.app import running
from gateway.config.load import load_config
from gateway.config.policy.single_backend import upstream_config

async def start():
    folder = Path(sys.argv[1])
    addresses = {"NEARHIT_SERVER__LISTEN": "127.0.0.1:0", "NEARHIT_SERVER__ADMIN": "127.0.0.1:0"}
    if (folder / "config.yaml").exists():
        config = load_config(folder / "config.yaml", addresses, print)
        policy = check_folder(config.policies, config)
    else:
        environ = {**addresses, "NEARHIT_DATA_DIR": str(folder / "data")}
        config, policy = upstream_config("http://127.0.0.1:9/v1", environ, print)
    async with running(config, policy, {}) as gateway:
        await gateway.recovery.complete.wait()
        print(*(name for name in sys.modules if name.partition(".")[0] == "gateway"))

asyncio.run(start())
"""


def served_modules(folder: Path) -> set[str]:
    """Return the modules of the gateway that are imported once it serves."""
    command = [sys.executable, "-c", SERVE, str(folder)]
    return set(subprocess.run(command, capture_output=True, text=True, timeout=300, check=True).stdout.split())


@pytest.mark.slow
def test_a_serve_imports_no_more_modules_than_it_uses(tmp_path: Path) -> None:
    loaded = served_modules(tmp_path)
    assert "gateway.cache.verifiers" in loaded
    assert len(loaded) <= WITH_BOTH_CACHES


@pytest.mark.slow
def test_a_serve_with_exact_caches_only_imports_fewer(tmp_path: Path) -> None:
    write_config(tmp_path, {"main": {"adapter": "openai", "url": "http://127.0.0.1:9/v1"}}, EXACT_CACHE)
    loaded = served_modules(tmp_path)
    assert "gateway.steps.exact_cache" in loaded
    assert "gateway.cache.verifiers" not in loaded
    assert len(loaded) <= EXACT_ONLY


def modules_after(program: str) -> set[str]:
    command = [sys.executable, "-c", f"import sys; {program}; print(*sys.modules)"]
    run = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
    return set(run.stdout.split())


@pytest.mark.slow  # starts nothing, takes seconds
def test_serving_imports_no_offline_tool_and_none_of_its_commands() -> None:
    loaded = modules_after("from gateway.cli.commands import build_parser; build_parser(['serve'])")
    assert "gateway.app" in loaded
    assert not loaded & set(UNUSED)
