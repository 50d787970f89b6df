"""What a command does not use is not imported."""

from __future__ import annotations

import subprocess
import sys

import pytest

# Only a missing model, several workers, `tune: {every: 1d}` or an operation of the admin port needs these.
UNUSED = (
    "gateway.admin.explain_pair",
    "gateway.admin.explanation",
    "gateway.cli.first_build",
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
    "gateway.steps.traffic_log",
    "rich",
)


def modules_after(program: str) -> set[str]:
    command = [sys.executable, "-c", f"import sys; {program}; print(*sys.modules)"]
    run = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
    return set(run.stdout.split())


@pytest.mark.slow  # starts nothing, takes seconds
def test_serving_imports_no_offline_tool_and_none_of_its_commands() -> None:
    loaded = modules_after("from gateway.cli.commands import build_parser; build_parser(['serve'])")
    assert "gateway.app" in loaded
    assert not loaded & set(UNUSED)
