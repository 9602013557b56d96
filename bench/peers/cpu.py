"""Timing on the CPU: contenders take turns of one untimed and four timed calls.

OpenMP's threads go on spinning for a while after a call of torch's, and would take the processor from whoever comes
next; the untimed call of each turn outlasts them. The copies of the cache together exceed the last-level cache.
"""

from __future__ import annotations

import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable

import torch

from .spread import Spread, spread_of

ROTATE_BYTES = 96 << 20
TIMED_CALLS = 4  # of a turn
LEAST_TURNS, MOST_TURNS = 5, 50


def take_turns(calls: dict[str, Callable[[int], torch.Tensor]], seconds: float) -> dict[str, Spread]:
    times_us: dict[str, list[float]] = {name: [] for name in calls}
    deadline = time.perf_counter() + seconds
    index = 0
    for turn in range(MOST_TURNS):
        if turn >= LEAST_TURNS and time.perf_counter() > deadline:
            break
        for name, call in calls.items():
            for repeat in range(1 + TIMED_CALLS):
                begin = time.perf_counter()
                call(index)
                if repeat > 0:
                    times_us[name].append(1e6 * (time.perf_counter() - begin))
                index += 1
    return {name: spread_of(times) for name, times in times_us.items()}


def measure_ceilings() -> dict[str, float]:
    """`gemm_tflops` and `read_gbps` as the flashmla program measures them; empty where there is no program."""
    beside = pathlib.Path(sys.executable).with_name("flashmla")
    program = os.environ.get("FLASHMLA_PROGRAM") or (str(beside) if beside.exists() else shutil.which("flashmla"))
    if not program:
        return {}
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "ceilings.json"
        command = [program, "bench", "decode", "--batch", "1", "--seq-k", "512", "--seconds", "1", "--json", str(path)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            return {}
        row = json.loads(path.read_text())["rows"][0]
    return {"gemm_tflops": row["peak_tflops"], "read_gbps": row["peak_gbps"]}
