"""A light model: its graph on the CPU and on the device, and a server with one and two instances under load."""

from __future__ import annotations

import asyncio
import re
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from tritonclient.grpc import InferInput
from tritonclient.grpc.aio import InferenceServerClient

from bench.embedders import statistics_of
from bench.gpu.decisions import Decisions
from bench.gpu.record import Record, StageOptions, stage_arguments
from bench.gpu.sessions import Rows, Session, pad_rows, rates
from bench.gpu.student import GRAPH, NAME, Student, student, student_in
from bench.gpu.triton_server import TritonEndpoint, peak_metrics, triton_server
from bench.gpu.weights import model_dir
from gateway.adapters.onnx.model_files import TOKENIZER_FILE, load_manifest
from gateway.adapters.onnx.tokenizer import TextTokenizer

BATCHES, INSTANCES, CALLERS = (1, 8, 64), (1, 2), (1, 16, 64)
LENGTH = 32  # tokens to which each text is pad_rows, so that requests share a batch
LIMIT_MS = 10.0  # a latency budget for the light model


def main() -> None:
    given, record = stage_arguments()
    folder = model_dir()
    reader = TextTokenizer(folder / TOKENIZER_FILE, load_manifest(folder).reading)
    ids = [reader.read(text).ids[:LENGTH] for text in Decisions(64).texts]
    with record.part("light model"), tempfile.TemporaryDirectory() as scratch:
        light = student_in(given.student) if given.student else student(Path(scratch))
        for device in dict.fromkeys(("cpu", given.device)):
            name = f"{NAME} graph on {device}"
            with record.part(name):
                record.row(name, **rates(Session(light.graph, device), ids, BATCHES, given.patience_s))
        for count in INSTANCES if given.triton is None else INSTANCES[:1]:
            with record.part(f"{NAME} on Triton, instances: {count}"):
                on_triton(given, record, light, count, ids)


def on_triton(given: StageOptions, record: Record, light: Student, count: int, ids: Rows) -> None:
    """Keep a row for each number of callers. A batch forms where requests meet a busy instance."""
    name = GRAPH if given.triton is None else f"{NAME}-graph"
    with triton_server(given, {name: (light.graph, python_config(light.config, count))}) as server:
        within = 0
        for callers in CALLERS[:2] if given.quick else CALLERS:
            figures = asyncio.run(load(server, name, ids, callers, 2 * given.patience_s))
            record.row(f"{NAME} on Triton ({server.about})", instances=count, callers=callers, **figures)
            within = callers if figures["p99_ms"] <= LIMIT_MS else within
        record.row(f"callers of {count} instances whose p99 stays within {LIMIT_MS:g} ms", callers=within)


async def load(server: TritonEndpoint, model: str, ids: Rows, callers: int, seconds: float) -> dict[str, Any]:
    """Return the figures of a closed loop, and the largest value of each metric during it."""
    took: list[float] = []
    before = await statistics_of(server.url, model)
    sampling = asyncio.create_task(asyncio.to_thread(peak_metrics, server, seconds))
    async with InferenceServerClient(server.url.partition("://")[2]) as client:
        until = time.perf_counter() + seconds

        async def ask(at: int) -> None:
            while time.perf_counter() < until:
                inputs = [_input("input_ids", ids[at % len(ids)], 0), _input("attention_mask", [1] * LENGTH, 0)]
                began = time.perf_counter()
                await client.infer(model, inputs)
                took.append(1e3 * (time.perf_counter() - began))
                at += callers

        began = time.perf_counter()
        await asyncio.gather(*(ask(at) for at in range(callers)))
        wall = time.perf_counter() - began
    after, metrics = await statistics_of(server.url, model), await sampling
    p50, p99 = np.percentile(took, [50, 99])
    return {
        "per_s": len(took) / wall,
        "p50_ms": float(p50),
        "p99_ms": float(p99),
        "requests_a_pass": (after.requests - before.requests) / max(1, after.executions - before.executions),
        **{f"most_{name}": value for name, value in metrics.items()},
    }


def python_config(config: str, count: int) -> str:
    """Return the configuration for the python backend of a server without the onnxruntime backend."""
    config = config.partition("# onnxruntime builds the TensorRT plan")[0]
    config = config.replace('backend: "onnxruntime"', 'backend: "python"')
    return re.sub(r"kind: KIND_GPU, count: \d+", f"kind: KIND_CPU, count: {count}", config)


def _input(name: str, row: Any, pad: int) -> InferInput:
    values = pad_rows([[*row, *[pad] * (LENGTH - len(row))]])
    made = InferInput(name, list(values.shape), "INT64")
    made.set_data_from_numpy(values)
    return made


if __name__ == "__main__":
    main()
