"""`nearhit top` before a gateway that runs: as a page, as JSON, and as a screen on a real pseudo-terminal."""

from __future__ import annotations

import asyncio
import json
import re
import shlex
import shutil
import sys
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest

from gateway.__main__ import main
from gateway.features.top import command as top_command
from tests.docs.console import fits
from tests.fixtures.gateways import Served
from tests.fixtures.processes import changed
from tests.fixtures.terminal import on_a_terminal, read_until
from tests.fixtures.triton import free_ports


@pytest.fixture(autouse=True)
def _a_gateway_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(top_command, "TIMEOUT_S", 120.0)


async def asked(served: Served) -> None:
    for question in ("What is a scope?", "What is a scope?", "Why?"):
        assert (await served.chat(question)).status == 200


def where(served: Served, tmp_path: Path) -> list[str]:
    return ["--config", str(tmp_path / "none.yaml"), "--admin", served.admin_url]


async def test_one_page_says_what_the_gateway_did(
    tiered: Served, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    await asked(tiered)
    assert await asyncio.to_thread(main, ["top", "--once", *where(tiered, tmp_path)]) == 0
    page = capsys.readouterr().out
    assert "\x1b" not in page  # no terminal, no colours
    assert max(map(len, page.splitlines())) <= 80
    assert "hit rate 33.3 %" in page
    assert re.search(r"^exact +33\.3 % +\d+\.\d +\d+\.\d +\d+\.\d$", page, re.MULTILINE)
    assert re.search(r"^light +0 +\d+ +0 +1/1  closed *$", page, re.MULTILINE)
    assert re.search(r"^default +0\.0 %  - *$", page, re.MULTILINE)


async def test_one_page_as_json(tiered: Served, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    await asked(tiered)
    assert await asyncio.to_thread(main, ["top", "--once", "--json", *where(tiered, tmp_path)]) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["since_start"], round(said["hit_rate"], 3), said["verdicts"]["exact"]["p95_ms"] > 0) == (
        True,
        0.333,
        True,
    )
    assert set(said["backends"]) == {"light", "large"}


async def test_no_gateway_there_is_a_sentence_and_exit_code_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url = f"http://127.0.0.1:{free_ports(1)[0]}"
    arguments = ["top", "--once", "--config", str(tmp_path / "none.yaml"), "--admin", url]
    assert await asyncio.to_thread(main, arguments) == 1
    assert capsys.readouterr().err.startswith(f"nearhit: no gateway answers at {url}")


# Compares with its first report for as long as it runs: on a busy machine a few requests may take longer than the ten
# seconds that it looks back.
FROM_THE_FIRST_ON = changed(
    {
        "gateway.features.top.command.WINDOW_S": 3600.0,
        "gateway.features.top.command.MAX_REPORTS": 100_000,
        "gateway.features.top.command.TIMEOUT_S": 120.0,
    }
)


def watching(*arguments: str, **environ: str) -> AbstractAsyncContextManager[tuple[asyncio.subprocess.Process, int]]:
    return on_a_terminal(*top(*arguments), **environ)


def top(*arguments: str) -> list[str]:
    return [sys.executable, *FROM_THE_FIRST_ON, "top", "--refresh", "0.1", *arguments]


@pytest.mark.parametrize("no_color", ["", "1"])
async def test_a_terminal_has_a_screen_that_is_refreshed_and_given_back(
    tiered: Served, tmp_path: Path, no_color: str
) -> None:
    async with watching(*where(tiered, tmp_path), NO_COLOR=no_color) as (process, ours):
        said = await read_until(ours, "since start")
        assert said.startswith("\x1b[?1049h")
        await asked(tiered)
        said = await read_until(ours, "hit rate 33.3 %", said)
        assert "(the last " in said
        # Only troubles have a colour. A loaded machine may hold the event loop back, which is one.
        coloured = re.findall(r"\x1b\[[\d;]*3\dm([^\x1b]*)", said)
        assert "\x1b[1m" in said and all("event loop stalled" in text for text in coloured)
        process.terminate()
        assert (await read_until(ours, "\x1b[?25h\x1b[?1049l")).endswith("\x1b[?1049l")
        assert await process.wait() == 0


async def test_a_gateway_that_goes_is_asked_again(served: Served, tmp_path: Path) -> None:
    async with watching(*where(served, tmp_path)) as (process, ours):
        await read_until(ours, "since start")
        await served.gateway.admin_port.stop()
        await read_until(ours, "retrying")
        assert process.returncode is None


# The first line may be cut, where it is long that the gateway is up; below the second one is how often the event loop
# stood still, if it did.
SCREEN = """\
nearhit http://127.0.0.1:...  policy ...  up ...  (the last ...
... requests/s   hit rate 33.3 %   shed 0   saved in all: ... tokens, $...
...

verdict                    share       per s      p50 ms      p95 ms
exact                     33.3 % ...
...
bypass                     0.0 %         0.0           -           -

backend                in flight   limit  queued  upstreams  breaker
light                          0 ...       0        1/1  closed
large                          0 ...       0        1/1  closed

route                  large share  wrong share of served hits (95 % interval)
default                      0.0 %  -
..."""


@pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed")
async def test_a_real_terminal_shows_it_in_24_lines_of_80_and_says_what_a_smaller_one_has_not(
    tiered: Served, tmp_path: Path
) -> None:
    async def tmux(*arguments: str) -> str:
        process = await asyncio.create_subprocess_exec(
            *("tmux", "-f", "/dev/null", "-S", str(tmp_path / "tmux"), *arguments), stdout=asyncio.subprocess.PIPE
        )
        return (await process.communicate())[0].decode()

    async def shown(expected: str) -> None:
        said = ""
        try:
            async with asyncio.timeout(120):
                while not fits(expected, said := await tmux("capture-pane", "-p")):
                    await asyncio.sleep(0.1)  # the screen of another process
        except TimeoutError:
            pytest.fail(f"it shows\n{said}")
        assert max(map(len, said.splitlines())) <= 80

    await tmux("new-session", "-d", "-x", "80", "-y", "24", shlex.join(top(*where(tiered, tmp_path))))
    try:
        await shown("nearhit ...\n... hit rate - ...\n...")
        await asked(tiered)
        await shown(SCREEN)
        await tmux("resize-window", "-x", "60", "-y", "8")
        await shown("nearhit ...\n...\n(... more lines: enlarge the terminal)\n...")
    finally:
        await tmux("kill-server")


async def test_json_is_an_object_a_line_until_it_is_ended(served: Served, tmp_path: Path) -> None:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "gateway", "top", "--json", "--refresh", "0.1", *where(served, tmp_path)),
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        assert process.stdout is not None
        async with asyncio.timeout(120):
            first, second = [json.loads(await process.stdout.readline()) for _ in range(2)]
        assert (first["since_start"], second["since_start"]) == (True, False)
        process.terminate()
        assert await process.wait() == 0
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
