"""Runs the walk of docs/distill.md, from the answers of a large model to a light model, with the commands on that page.

Run `make distill-walk DATA=train.csv HELD_OUT=test.csv` after `make distill`, whose `intents-large` is the large model.
It answers the texts of DATA behind a gateway with a cache. `nearhit cache export` and `nearhit distill` make `walked`
from its answers, without the labels. Then both models answer the texts of HELD_OUT, as in bench/distill.py.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path

from bench.distill import draw_rows, measure, start_triton, table
from bench.gateways import EXACT_CACHE, gateway_of
from gateway.__main__ import main as nearhit

LARGE, NAME = "intents-large", "walked"
CONFIG = """
version: 1
server: {{listen: 127.0.0.1:{port}, admin: 127.0.0.1:{admin}}}
backends: {{main: {{adapter: triton, url: "{triton}", model: {large}}}}}
"""


def run_command(*words: object) -> None:
    """Run a command as a person types it."""
    started = time.monotonic()
    if nearhit([*map(str, words)]) != 0:
        raise SystemExit(f"nearhit {words[0]} failed")
    print(f"nearhit {' '.join(map(str, words[:2]))}: {time.monotonic() - started:.0f} s", flush=True)


def export_answers(triton: str, texts: list[str], home: Path) -> Path:
    """Fill the cache with answers of the large model, and export them."""
    prompts, answers = home / "prompts.jsonl", home / "answers.jsonl"
    prompts.write_text("".join(json.dumps(text) + "\n" for text in texts))
    with gateway_of(CONFIG, EXACT_CACHE, triton=triton, large=LARGE) as it:
        url, admin = f"http://127.0.0.1:{it.port}", f"http://127.0.0.1:{it.admin}"
        run_command("cache", "warm", prompts, "--admin", admin, "--url", url, "--rate", "1000/s")
        run_command("cache", "export", "--admin", admin, "--format", "chat", "--out", answers)
    return answers


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repository", type=Path, default=Path("build/models"))
    parser.add_argument("--texts", type=Path, required=True, help="what the large model is asked")
    parser.add_argument("--rows", type=Path, required=True, help="texts and labels that both are then compared on")
    parser.add_argument("--answers", type=int, default=6000, help="of the texts")
    parser.add_argument("--requests", type=int, default=400)
    parser.add_argument("--build-env", type=Path, default=Path(".venv-build"))
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        home = Path(scratch)
        with start_triton(given.repository) as triton:
            answers = export_answers(triton, [row.text for row in draw_rows(given.texts, given.answers)], home)
        where = ("--repository", given.repository, "--work", home / "work", "--build-env", given.build_env)
        run_command("distill", answers, "--name", NAME, *where)
    rows = draw_rows(given.rows, given.requests)
    with start_triton(given.repository) as triton:
        found = measure(triton, given.repository, NAME, LARGE, rows)
    print(f"{len(rows)} questions of {given.rows.name}, one after the other\n{table(found, 0.1)}")


if __name__ == "__main__":
    main()
