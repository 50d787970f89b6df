"""How models run in this process: onnxruntime on the CPU, so that the event loop keeps its core."""

from __future__ import annotations

from pathlib import Path

import onnxruntime


def open_session(model: Path, threads: int) -> onnxruntime.InferenceSession:
    """`threads`: of one pass. Raises what onnxruntime raises where the file is no model."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    # Idle threads would spin between operators and take the event loop's core.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    # The arena stays on: without it every pass asks the kernel for its buffers anew, RSS 115 instead of 104-112 MB and
    # 256 tokens 16.3 instead of 15.9 ms (all-MiniLM-L6-v2). Patterns are for fixed shapes: off, 7 MB less in passes of
    # 8 x 256 tokens.
    options.enable_cpu_mem_arena = True
    options.enable_mem_pattern = False
    options.log_severity_level = 3  # errors only
    return onnxruntime.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])
