"""Timing on a GPU: CUDA graphs of calls, replayed in turns.

Of every contender three graphs are captured, planning outside:

- `cold`: calls that go round the copies of the cache, so that none finds its keys in L2; after each call an ordinary
  kernel, without programmatic dependent launch. The time of a graph of that kernel alone is subtracted. This is what an
  operation costs between other kernels, and the figure that libraries are judged by.
- `warm`: the same, with the same copy each time.
- `chain`: calls back to back, copies as in `cold`; a library may overlap the end of one call with the next one's start.

In a round every contender replays each of its graphs once, A B A B, after a rest that keeps the chip cool (it throttles
after some 50 ms of load).
"""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import math
import time
from collections.abc import Callable

import torch

from .cases import Case
from .problem import Problem
from .spread import Spread, spread_of

ROTATE_BYTES = 300 << 20  # of keys between two uses of the same copy, at least; an H200's L2 holds 60 MB
REST_S = 0.015  # before a replay
REPLAY_US = 15e3  # most time of one replay, unless the rotation needs longer
LEAST_ROUNDS, MOST_ROUNDS = 5, 15
HOT_LOAD_S = 1.0
HOT_REPLAYS = 7
EAGER_CALLS = 20


def calls_of(case: Case) -> int:
    """Calls of a graph: long beside the launch of the graph, short beside the chip's throttling."""
    usual = 8 if case.bytes > 1e8 else 40 if case.bytes > 1e7 else 200
    return max(usual, rotation_of(case))


def rotation_of(case: Case) -> int:
    """Calls until the rotation comes back to the same copy of the cache."""
    return max(2, math.ceil(ROTATE_BYTES / case.kv_bytes))


class Contender:
    """A prepared call with its graphs."""

    def __init__(self, call: Callable[[int], torch.Tensor], problem: Problem, timer: Timer) -> None:
        self.call, self._timer = call, timer
        self._stream = timer.stream
        case = problem.case
        estimate_us = self._estimate_us()
        self.calls = max(rotation_of(case), min(calls_of(case), int(REPLAY_US / estimate_us)))
        between = timer.launch_between
        self._graphs = {
            "cold": self._capture(lambda i: (call(i), between())),
            "warm": self._capture(lambda i: (call(0), between())),
            "chain": self._capture(call),
        }
        self.times_us: dict[str, list[float]] = {name: [] for name in self._graphs}

    def _estimate_us(self) -> float:
        """Also what has to happen once, outside of a capture: compilation, choice of kernels, first allocations."""
        torch.cuda.synchronize()  # what was prepared, was so on another stream
        with torch.cuda.stream(self._stream):
            self.call(0)
            self._stream.synchronize()
            begin, end = _events()
            begin.record()
            self.call(1)
            end.record()
        end.synchronize()
        return max(1.0, 1e3 * begin.elapsed_time(end))

    def _capture(self, step: Callable[[int], object]) -> torch.cuda.CUDAGraph:
        return self._timer.capture(step, self.calls)

    def replay(self, name: str) -> None:
        """One timed replay after a rest."""
        time.sleep(REST_S)
        apart = 0.0 if name == "chain" else self._timer.between_us(self.calls)
        self.times_us[name].append((self._timer.replay_us(self._graphs[name]) - apart) / self.calls)

    def warm_up(self) -> None:
        for graph in self._graphs.values():
            self._timer.replay_us(graph)

    def hot(self) -> Spread:
        """As `cold`, without rests, after HOT_LOAD_S of load."""
        graph, begin = self._graphs["cold"], time.perf_counter()
        while time.perf_counter() - begin < HOT_LOAD_S:
            self._timer.replay_us(graph)
        apart = self._timer.between_us(self.calls)
        return spread_of([(self._timer.replay_us(graph) - apart) / self.calls for _ in range(HOT_REPLAYS)])

    def eager(self) -> Spread:
        """Calls without a graph, one after the other: the host's time counts where it is the longer."""
        times = []
        for _ in range(LEAST_ROUNDS):
            with torch.cuda.stream(self._stream):
                begin, end = _events()
                begin.record()
                for i in range(EAGER_CALLS):
                    self.call(i)
                end.record()
            end.synchronize()
            times.append(1e3 * begin.elapsed_time(end) / EAGER_CALLS)
        return spread_of(times)


class Timer:
    """The stream that everything is timed on, and the kernel between calls."""

    def __init__(self, device: torch.device) -> None:
        self.stream = torch.cuda.Stream(device)
        self._word = torch.zeros(1, device=device)
        self._between: dict[int, float] = {}
        self._events = _events()
        with torch.cuda.stream(self.stream):
            self.launch_between()
        self.stream.synchronize()

    def launch_between(self) -> None:
        self._word.fill_(1.0)

    def capture(self, step: Callable[[int], object], calls: int) -> torch.cuda.CUDAGraph:
        """A graph of `step(0)` .. `step(calls - 1)`. (`torch.cuda.graph` collects garbage first, which takes long.)"""
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        collects = gc.isenabled()
        gc.disable()  # what it frees may be memory of the GPU, which a capture does not allow
        try:
            with torch.cuda.stream(self.stream):
                graph.capture_begin(capture_error_mode="thread_local")
                try:
                    for i in range(calls):
                        step(i)
                except BaseException:
                    with contextlib.suppress(RuntimeError):  # the capture's own complaint would hide the reason
                        graph.capture_end()
                    raise
                graph.capture_end()
        finally:
            if collects:
                gc.enable()
        return graph

    def replay_us(self, graph: torch.cuda.CUDAGraph) -> float:
        begin, end = self._events
        with torch.cuda.stream(self.stream):
            begin.record()
            graph.replay()
            end.record()
        end.synchronize()
        return 1e3 * begin.elapsed_time(end)

    def between_us(self, calls: int) -> float:
        """Time of so many of the kernels that stand between calls, alone: the median, measured once for each count."""
        if calls not in self._between:
            graph = self.capture(lambda _: self.launch_between(), calls)
            self.replay_us(graph)
            times = []
            for _ in range(MOST_ROUNDS):
                time.sleep(REST_S)
                times.append(self.replay_us(graph))
            self._between[calls] = spread_of(times).median_us
        return self._between[calls]


def _events() -> tuple[torch.cuda.Event, torch.cuda.Event]:
    return torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)


@dataclasses.dataclass
class Failure:
    """A contender that raised while it was timed."""

    error: Exception


def take_turns(contenders: dict[str, Contender], seconds: float) -> dict[str, Failure]:
    """Replays in rounds until `seconds` have passed: at least LEAST_ROUNDS rounds, at most MOST_ROUNDS."""
    failed: dict[str, Failure] = {}
    for name, contender in contenders.items():
        _guarded(failed, name, contender.warm_up)
    deadline = time.perf_counter() + seconds
    for done in range(MOST_ROUNDS):
        if done >= LEAST_ROUNDS and time.perf_counter() > deadline:
            break
        for column in ("cold", "warm", "chain"):
            for name, contender in contenders.items():
                if name not in failed:
                    _guarded(failed, name, lambda c=contender, graph=column: c.replay(graph))
    return failed


def _guarded(failed: dict[str, Failure], name: str, step: Callable[[], None]) -> None:
    try:
        step()
    except Exception as error:  # another library's: whatever it is, the others go on
        failed[name] = Failure(error)
