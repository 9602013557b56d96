"""Runs the cases: checks every library's result, then times those that are right, in turns."""

from __future__ import annotations

import dataclasses
import time
import traceback
from collections.abc import Callable
from typing import Any, TextIO

import torch

from . import cpu
from .adapters import Adapter, NotInstalled
from .cases import Case
from .problem import Problem, relative_error
from .spread import Spread, spread_of


@dataclasses.dataclass
class Options:
    device: torch.device
    seconds: float = 90.0  # most time of the whole run, but for LEAST_ROUNDS of every case
    hot: bool = False
    eager: bool = False
    log: TextIO | None = None  # of tracebacks


@dataclasses.dataclass
class Entry:
    """A library and a case: its times, or why there are none."""

    case: Case
    library: str
    kernel: str
    status: str  # ok, wrong, failed, unsupported
    reason: str = ""
    version: str = ""
    error: float | None = None  # relative, see problem.relative_error
    copies: int = 0
    columns: dict[str, Spread] = dataclasses.field(default_factory=dict)  # time, chain, l2_warm, chip_hot, eager
    sm_clock_mhz: float | None = None


@dataclasses.dataclass
class Run:
    device: torch.device
    ceilings: dict[str, float]
    entries: list[Entry]
    absent: dict[str, str]  # "library kernel" -> why it takes no part


def load(adapters: list[Adapter], device: torch.device) -> tuple[list[Adapter], dict[str, str]]:
    """Those that are here, and why the others are not."""
    present, absent = [], {}
    for adapter in adapters:
        if device.type not in adapter.devices:
            absent[f"{adapter.library} {adapter.kernel}"] = f"does not run on the {device.type.upper()}"
            continue
        try:
            adapter.load()
            present.append(adapter)
        except NotInstalled as error:
            absent[f"{adapter.library} {adapter.kernel}"] = str(error)
        except Exception as error:  # of somebody else's package: it takes no part, the others do
            absent[f"{adapter.library} {adapter.kernel}"] = f"cannot be loaded: {_text(error)}"
    return present, absent


def run(
    cases: list[Case], adapters: list[Adapter], options: Options, report: Callable[[Run, list[Entry]], None]
) -> Run:
    """`report` is called after every case, with everything so far and the entries of that case."""
    present, absent = load(adapters, options.device)
    bench = _Gpu(options) if options.device.type == "cuda" else _Cpu(options)
    result = Run(options.device, bench.ceilings(), [], absent)
    end = time.perf_counter() + options.seconds
    for done, case in enumerate(cases):
        share = max(0.0, end - time.perf_counter()) / (len(cases) - done)
        try:
            entries = _run_case(case, present, bench, options, time.perf_counter() + share)
        except Exception as error:  # memory, mostly; or a library has lost the GPU for all
            entries = [Entry(case, adapter.library, adapter.kernel, "failed") for adapter in present]
            for entry in entries:
                _fail(entry, error, options)
            bench.check()
        result.entries += entries
        if done == len(cases) - 1:
            for field, value in bench.ceilings().items():
                result.ceilings[field] = max(value, result.ceilings.get(field, 0.0))
        report(result, entries)
    return result


def _run_case(case: Case, adapters: list[Adapter], bench: _Gpu | _Cpu, options: Options, until: float) -> list[Entry]:
    problem = Problem(case, options.device, bench.rotate_bytes)
    expected = problem.expected()
    entries, calls = [], {}
    for adapter in adapters:
        entry, call = _prepare(adapter, problem, expected, options)
        entries.append(entry)
        if call is not None:
            calls[len(entries) - 1] = call
    bench.time(problem, {index: (entries[index], call) for index, call in calls.items()}, until)
    return entries


def _prepare(adapter: Adapter, problem: Problem, expected: dict[int, torch.Tensor], options: Options):
    case = problem.case
    entry = Entry(case, adapter.library, adapter.kernel, "ok", copies=problem.copies)
    reason = adapter.unsupported(case)
    if reason is not None:
        entry.status, entry.reason = "unsupported", reason
        return entry, None
    try:
        entry.version = adapter.version()
        if hasattr(adapter, "kernel_of"):
            entry.kernel = adapter.kernel_of(case, problem.device)
        with torch.inference_mode():
            call = adapter.prepare(problem)
            out = call(0)
        entry.error = relative_error(out, expected)
    except Exception as error:
        _fail(entry, error, options)
        return entry, None
    most = adapter.most_relative_error
    if not entry.error <= most:  # nor where it is not a number
        entry.status = "wrong"
        entry.reason = f"relative error {entry.error:.2g} to the double-precision formula; want at most {most:g}"
        return entry, None
    return entry, call


def _fail(entry: Entry, error: Exception, options: Options) -> None:
    entry.status, entry.reason = "failed", _text(error)
    entry.columns.clear()
    if options.log is not None:
        print(f"---- {entry.library} {entry.kernel}, {entry.case.name}", file=options.log)
        traceback.print_exception(error, file=options.log)
        options.log.flush()


def _text(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:300] if lines else ''}"


class _Gpu:
    def __init__(self, options: Options) -> None:
        from . import gpu, gpu_ceilings

        self._gpu, self._ceilings, self._options = gpu, gpu_ceilings, options
        self.rotate_bytes = gpu.ROTATE_BYTES
        self._timer = gpu.Timer(options.device)

    def ceilings(self) -> dict[str, float]:
        return self._ceilings.measure(self._timer, self._options.device)

    def check(self) -> None:
        """Raises where an earlier call has made the GPU unusable for this process."""
        torch.cuda.empty_cache()
        torch.cuda.synchronize()

    def time(self, problem: Problem, calls: dict[int, tuple[Entry, Callable]], until: float) -> None:
        contenders = {}
        with torch.inference_mode():
            for index, (entry, call) in calls.items():
                try:
                    contenders[index] = self._gpu.Contender(call, problem, self._timer)
                except Exception as error:
                    _fail(entry, error, self._options)
            failed = self._gpu.take_turns(contenders, until - time.perf_counter())
            for index, contender in contenders.items():
                entry = calls[index][0]
                if index in failed:
                    _fail(entry, failed[index].error, self._options)
                    continue
                try:
                    self._collect(entry, contender)
                except Exception as error:
                    _fail(entry, error, self._options)
        contenders.clear()
        torch.cuda.empty_cache()

    def _collect(self, entry: Entry, contender: Any) -> None:
        contender.replay("cold")
        entry.sm_clock_mhz = self._ceilings.sm_clock_mhz(self._timer, self._options.device)
        for field, name in (("time", "cold"), ("l2_warm", "warm"), ("chain", "chain")):
            entry.columns[field] = spread_of(contender.times_us[name])
        if self._options.eager:
            entry.columns["eager"] = contender.eager()
        if self._options.hot:
            entry.columns["chip_hot"] = contender.hot()


class _Cpu:
    rotate_bytes = cpu.ROTATE_BYTES

    def __init__(self, options: Options) -> None:
        self._options = options

    def ceilings(self) -> dict[str, float]:
        return cpu.measure_ceilings()

    def check(self) -> None:
        """Nothing that a failure could have broken."""

    def time(self, problem: Problem, calls: dict[int, tuple[Entry, Callable]], until: float) -> None:
        with torch.inference_mode():
            times = cpu.take_turns({i: call for i, (_, call) in calls.items()}, until - time.perf_counter())
        for index, spread in times.items():
            calls[index][0].columns["time"] = spread
