"""What the GPU can do, measured in the same run: reading, multiplying, and the clock that it really runs at."""

from __future__ import annotations

import time

import torch

from .gpu import REST_S, Timer
from .spread import spread_of

READ_BYTES = 4 << 30
GEMM_SIDE = 8192
REPLAYS = 7

try:
    import triton
    import triton.language as tl
except ImportError:
    triton = None

if triton is not None:

    @triton.jit
    def _read(data, sink, each, BLOCK: tl.constexpr):
        """Program p reads BLOCK int32 values at p, p + programs, ...: 16 bytes a thread and load."""
        offset = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
        step = tl.num_programs(0).to(tl.int64) * BLOCK
        seen = tl.zeros([BLOCK], tl.int32)
        for _ in range(each):
            seen = seen | tl.load(data + offset, eviction_policy="evict_first")
            offset += step
        tl.store(sink + tl.program_id(0), tl.max(seen, 0))

    @triton.jit
    def _clock(out, spin_ns):
        """Processor clocks and nanoseconds of a spin."""
        begin = tl.extra.cuda.globaltimer()
        clock_begin = tl.inline_asm_elementwise(
            "mov.u64 $0, %clock64;", "=l", [], dtype=tl.int64, is_pure=False, pack=1
        )
        now = begin
        while now < begin + spin_ns:
            now = tl.extra.cuda.globaltimer()
        clock_end = tl.inline_asm_elementwise("mov.u64 $0, %clock64;", "=l", [], dtype=tl.int64, is_pure=False, pack=1)
        tl.store(out, clock_end - clock_begin)
        tl.store(out + 1, now - begin)


def measure(timer: Timer, device: torch.device) -> dict[str, float]:
    """`read_gbps`; `gemm_tflops` of one bf16 product on a cool chip and `gemm_warm_tflops` of ten back to back;
    `sm_clock_mhz` right after the latter. What cannot be measured here is left out."""
    found: dict[str, float] = {}
    data = torch.empty(READ_BYTES // 4, dtype=torch.int32, device=device).random_()
    found["read_gbps"] = max(READ_BYTES / us * 1e-3 for us in _read_times_us(timer, data, device))
    del data
    a, b = (torch.randn(GEMM_SIDE, GEMM_SIDE, device=device, dtype=torch.bfloat16) for _ in range(2))
    out = torch.empty_like(a)
    flops = 2 * GEMM_SIDE**3
    with torch.cuda.stream(timer.stream):
        torch.mm(a, b, out=out)
    for field, calls in (("gemm_tflops", 1), ("gemm_warm_tflops", 10)):
        graph = timer.capture(lambda _: torch.mm(a, b, out=out), calls)
        found[field] = flops * calls / _best_us(timer, graph) * 1e-6
    clock = sm_clock_mhz(timer, device)
    if clock is not None:
        found["sm_clock_mhz"] = clock
    return found


def _read_times_us(timer, data, device):
    if triton is None:
        yield _best_us(timer, timer.capture(lambda _: torch.sum(data), 1))
        return
    processors = torch.cuda.get_device_properties(device).multi_processor_count
    for programs, block, warps in ((8, 4096, 4), (16, 4096, 4), (8, 8192, 8)):
        grid = processors * programs
        sink = torch.empty(grid, dtype=torch.int32, device=device)
        each = data.numel() // (grid * block)

        def read(_, grid=grid, sink=sink, each=each, block=block, warps=warps):
            _read[(grid,)](data, sink, each, BLOCK=block, num_warps=warps)

        with torch.cuda.stream(timer.stream):
            read(0)
        share = each * grid * block / data.numel()
        yield _best_us(timer, timer.capture(read, 1)) / share


def _best_us(timer: Timer, graph: torch.cuda.CUDAGraph) -> float:
    """The median: a ceiling of one lucky replay would be none that a kernel can meet."""
    timer.replay_us(graph)
    times = []
    for _ in range(REPLAYS):
        time.sleep(REST_S)
        times.append(timer.replay_us(graph))
    return spread_of(times).median_us


def sm_clock_mhz(timer: Timer, device: torch.device) -> float | None:
    """Clock of a multiprocessor over the next 100 us of the timer's stream; None where it cannot be read."""
    if triton is None:
        return None
    try:
        out = torch.zeros(2, dtype=torch.int64, device=device)
        with torch.cuda.stream(timer.stream):
            _clock[(1,)](out, 100_000, num_warps=1)
        timer.stream.synchronize()
        clocks, nanoseconds = out.tolist()
        return 1e3 * clocks / nanoseconds
    except Exception:  # of the compiler: the clock is an extra
        return None
