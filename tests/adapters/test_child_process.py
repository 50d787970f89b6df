"""A child process is started, watched and stopped; it never outlives us and never stays a zombie."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest

from gateway.adapters.system.child_process import ChildFailed, ChildProcess, death_signal_prefix

IDLE = "import time; print('up', flush=True); time.sleep(600)"
DEAF = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); " + IDLE


async def never() -> bool:
    return False


def says_up(child: ChildProcess) -> bool:
    return "up" in child.log.read_text()


async def start(tmp_path: Path, program: str) -> ChildProcess:
    child = await ChildProcess.start("toy", [sys.executable, "-c", program], log=tmp_path / "toy.log")

    async def up() -> bool:
        return says_up(child)

    await child.wait_ready(up, timeout_s=120)
    return child


def gone(pid: int) -> bool:
    """Neither running nor a zombie: the kernel does not know the process any more."""
    return not Path(f"/proc/{pid}").exists()


async def test_a_child_that_ends_early_fails_at_once_with_the_end_of_its_log(tmp_path: Path) -> None:
    """Waiting the whole timeout for a child that has ended would hide its message and cost the time."""
    program = "import sys; print('cannot bind'); sys.exit(3)"
    child = await ChildProcess.start("toy", [sys.executable, "-c", program], log=tmp_path / "toy.log")
    with pytest.raises(ChildFailed, match=r"(?s)toy ended with exit code 3.*cannot bind"):
        await asyncio.wait_for(child.wait_ready(never, timeout_s=600), 120)
    assert gone(child.pid)


async def test_a_child_that_never_gets_ready_fails_after_the_timeout(tmp_path: Path) -> None:
    child = await start(tmp_path, IDLE)
    with pytest.raises(ChildFailed, match=r"toy was not ready within 0\.1 s"):
        await child.wait_ready(never, timeout_s=0.1)
    assert child.returncode is None
    await child.stop()


async def test_a_probe_that_cannot_connect_means_not_yet(tmp_path: Path) -> None:
    """Until a server listens, connecting raises: that is what waiting is for."""
    child = await start(tmp_path, IDLE)
    answers = [ConnectionRefusedError(), ConnectionRefusedError(), None]

    async def probe() -> bool:
        answer = answers.pop(0)
        if answer is not None:
            raise answer
        return True

    await child.wait_ready(probe, timeout_s=120)
    assert answers == []
    await child.stop()


async def test_a_program_that_does_not_exist_is_named(tmp_path: Path) -> None:
    with pytest.raises(ChildFailed, match="toy: there is no program /nowhere/toy"):
        await ChildProcess.start("toy", ["/nowhere/toy"], log=tmp_path / "toy.log")


async def test_stopping_leaves_no_process_and_no_zombie(tmp_path: Path) -> None:
    child = await start(tmp_path, IDLE)
    assert await child.stop() == -signal.SIGTERM
    assert gone(child.pid)


async def test_stopping_kills_a_child_that_ignores_sigterm(tmp_path: Path) -> None:
    child = await start(tmp_path, DEAF)
    assert await child.stop(grace_s=0.1) == -signal.SIGKILL
    assert gone(child.pid)


async def test_stopping_twice_is_stopping_once(tmp_path: Path) -> None:
    child = await start(tmp_path, IDLE)
    assert await child.stop() == await child.stop()


async def test_a_terminals_interrupt_does_not_reach_a_child(tmp_path: Path) -> None:
    """Ctrl-C goes to the foreground process group; a child in it would die before its clients are done."""
    child = await start(tmp_path, IDLE)
    assert os.getpgid(child.pid) != os.getpgid(0)
    await child.stop()


@pytest.mark.skipif(not death_signal_prefix(signal.SIGKILL), reason="no setpriv (util-linux) on this machine")
async def test_a_child_dies_when_its_parent_is_killed(tmp_path: Path) -> None:
    """SIGKILL leaves us no handler: only the kernel can pass the news on."""
    argv, log = [sys.executable, "-c", IDLE], tmp_path / "toy.log"
    parent = f"""
import asyncio, pathlib
from gateway.adapters.system.child_process import ChildProcess
async def main():
    child = await ChildProcess.start("toy", {argv!r}, log=pathlib.Path({str(log)!r}))
    async def up(): return "up" in child.log.read_text()
    await child.wait_ready(up, 120)
    print(child.pid, flush=True)
    await child.wait()
asyncio.run(main())
"""
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", parent, stdout=asyncio.subprocess.PIPE)
    assert process.stdout is not None
    grandchild = os.pidfd_open(int(await asyncio.wait_for(process.stdout.readline(), 120)))
    try:
        died = asyncio.Event()
        asyncio.get_running_loop().add_reader(grandchild, died.set)  # a pidfd is readable once its process ended
        process.kill()
        await process.wait()
        await asyncio.wait_for(died.wait(), 120)
    finally:
        asyncio.get_running_loop().remove_reader(grandchild)
        os.close(grandchild)
