"""How fast vLLM serves DeepSeek-V2-Lite on one GPU: with flashmla, with its own MLA back ends, and without MLA.

    python bench/serving/vllm_speed.py --out speed.json --waves ours,FLASH_ATTN_MLA,FLASHMLA ours,TRITON_MLA,MHA
    python bench/serving/vllm_speed.py --out mha.json --waves MHA ours --batches 64 --contexts 4096
    python bench/serving/vllm_speed.py --out eager.json --waves ours,FLASH_ATTN_MLA,MHA --eager --steps 48
    python bench/serving/vllm_speed.py --out tokens.json --check-tokens

Wants torch, vLLM (0.22 is what it was written against) and flashmla with its GPU kernels on the path; no network.

Measured is the whole engine at the model's full size, with random weights that are the same for every back end:
compilation, CUDA graphs of the batch sizes, asynchronous scheduling and the prefix cache as vLLM has them by itself;
bf16, pages of 64 tokens. What computes is read off the layers: a back end that vLLM has replaced by another is an
error, not a figure.

- decode_tokens_per_s: requests decode together. Time runs from the step in which the last of them has its first token
  to the step before one ends. Prompts come out of the prefix cache, which is filled before each measurement.
- step_ms and cpu_share, with each sample: how long steps took (10th, 50th, 90th percentile), and the CPU seconds of the
  process in a second. Eager, the host decides: figures of back ends can be compared only where these hold still.
- ttft_ms: from a prompt that is new to the engine to its first token; one request alone.
- kv_bytes_per_token: of the cache that the engine has made, over all layers.

Back ends of a wave have a process each. They start at once, since that takes longest; then they measure in turns, one
at a time, and the others wait without work. Waves follow one another. Results are written after each measurement. A
case whose tokens do not fit beside the other processes of the wave is left out and listed under "skipped", and a back
end without any case is not started. Without MLA the cache of 64 requests of 4,096 tokens takes 84 GiB: on a GPU of 140
GiB that wants a wave of its own, as in the second line above.

--check-tokens compares greedy tokens and their log-probabilities on a tiny DeepSeek-V2 with random weights on disk.
Back ends round in different ways, in bf16 more than with --dtype float16, and sequences part where two tokens are about
as likely: what counts is that ours differs from vLLM's own no more than those do from one another.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import itertools
import json
import os
import pathlib
import select
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any

from vllm_engine import BACK_ENDS, OURS, PAGE, work
from vllm_plan import GIB, longest_request, plan_caches, tokens_of

SCRIPT = pathlib.Path(__file__).resolve()
ROOT = SCRIPT.parents[2]

ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # so that what ran can be looked at
    "VLLM_USE_FLASHINFER_SAMPLER": "0",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "PYTHONUNBUFFERED": "1",
}
# Where the caller's environment says nothing. vLLM sets it for several GPUs alone; here processes share the cores.
DEFAULTS = {"OMP_NUM_THREADS": "1"}
MEASURING_SHARE = 0.3  # of a wave's time that start may not take


class Worker:
    def __init__(self, name: str, spec: dict[str, Any], logs: pathlib.Path) -> None:
        self.name, self.log, self.facts = name, logs / f"{name}-{spec['tag']}.log", {}
        self.pending = b""
        self.error: str | None = None
        environment = {
            **DEFAULTS,
            **os.environ,
            **ENVIRONMENT,
            "VLLM_MLA_DISABLE": "0" if BACK_ENDS[name].mla else "1",
            "VLLM_CACHE_ROOT": str(logs / f"cache-{name}"),
        }
        self.read, write = os.pipe()
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, str(SCRIPT), "--worker", name, "--spec", json.dumps(spec), "--answers", str(write)],
                stdin=subprocess.PIPE, stdout=log, stderr=subprocess.STDOUT, pass_fds=(write,), env=environment,
                process_group=0,
            )  # fmt: skip
        os.close(write)

    def answer(self, deadline: float) -> dict[str, Any] | None:
        """The next answer; None, and `error` set, where the process ended or the time is over."""
        while b"\n" not in self.pending:
            ready, _, _ = select.select([self.read], [], [], max(0.0, deadline - time.perf_counter()))
            data = os.read(self.read, 65536) if ready else b""
            if not data:
                self.error = "the process ended" if ready else "no answer within the time"
                return None
            self.pending += data
        line, _, self.pending = self.pending.partition(b"\n")
        return json.loads(line)

    def ask(self, deadline: float, do: str, **arguments: Any) -> dict[str, Any] | None:
        assert self.process.stdin is not None
        try:
            self.process.stdin.write((json.dumps({"do": do, **arguments}) + "\n").encode())
            self.process.stdin.flush()
        except BrokenPipeError:
            self.error = "the process ended"
            return None
        return self.answer(deadline)

    def moe_config(self) -> str:
        log = self.log.read_text(errors="replace")
        if "Using default MoE config" in log:
            return "default (no tuned one found)"
        return "tuned" if "for MoE layer" in log else "not said"

    def stop(self) -> None:
        """At once: its GPU memory is wanted."""
        if self.process.poll() is None:
            with contextlib.suppress(OSError):
                os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


def say(text: str) -> None:
    print(f"{time.perf_counter() - STARTED:6.1f} s  {text}", flush=True)


STARTED = time.perf_counter()


def start_wave(names: list[str], specs: list[dict[str, Any]], logs: pathlib.Path, deadline: float) -> list[Worker]:
    """All workers of the wave. Those that did not start in time have `error` set and are ended, the others go on."""
    workers = [Worker(name, spec, logs) for name, spec in zip(names, specs, strict=True)]
    for worker in workers:
        facts = worker.answer(deadline)
        if facts is None or "error" in facts:
            worker.error = worker.error or (facts or {}).get("error")
            worker.stop()
            tail = worker.log.read_text(errors="replace").splitlines()[-40:]
            print(f"--- {worker.name}: {worker.error}; end of {worker.log}:", *tail, sep="\n", flush=True)
            continue
        worker.facts = {**facts, "moe_config": worker.moe_config()}
        say(f"{worker.name} is ready: {worker.facts['impl']}, {worker.facts['start_s']} s")
    return workers


def summary(
    samples: list[dict[str, Any]], facts: dict[str, dict[str, Any]], options: argparse.Namespace
) -> list[dict[str, Any]]:
    """A row for each wave, back end and case, from all turns."""
    rows = []
    ttft: dict[tuple[int, str, int], list[float]] = {}
    decode: dict[tuple[int, str, int, int], dict[int, dict[str, Any]]] = {}
    for sample in samples:
        at = (sample["wave"], sample["backend"])
        if "ttft_ms" in sample:
            ttft.setdefault((*at, sample["context"]), []).extend(sample["ttft_ms"])
        else:
            decode.setdefault((*at, sample["batch"], sample["context"]), {})[sample["turn"]] = sample
    for (wave, name, batch, context), turns in decode.items():
        rates = [turn["tokens_per_s"] for turn in turns.values()]
        chunks = [rate for turn in turns.values() for rate in turn["chunk_tokens_per_s"]]
        tenths = statistics.quantiles(chunks, n=10) if len(chunks) > 1 else chunks
        ours = decode.get((wave, OURS, batch, context), {})
        ratios = [ours[turn]["tokens_per_s"] / turns[turn]["tokens_per_s"] for turn in turns if turn in ours]
        firsts = sorted(ttft.get((wave, name, context), []))
        fact = facts[f"{wave}:{name}"]
        row = {
            "wave": wave, "backend": name, "impl": fact["impl"], "mode": "eager" if options.eager else "graphs",
            "batch": batch, "context": context, "decode_tokens_per_s": round(statistics.median(rates), 1),
            "lowest_turn": round(min(rates), 1), "highest_turn": round(max(rates), 1), "turns": len(rates),
            "steps": sum(turn["steps"] for turn in turns.values()),
            "spread": round((max(rates) - min(rates)) / statistics.median(rates), 4),
            "chunk_spread": round((tenths[-1] - tenths[0]) / statistics.median(chunks), 4),
            "ours_over_this": round(statistics.median(ratios), 4) if ratios else None,
            "ttft_ms": round(statistics.median(firsts), 2) if firsts else None,
            "ttft_ms_lowest": round(firsts[0], 2) if firsts else None,
            "ttft_ms_highest": round(firsts[-1], 2) if firsts else None,
            "weights": options.weights, "moe_config": fact["moe_config"], "vllm_version": fact["vllm_version"],
            "torch_version": fact["torch_version"], "device": fact["device"], "page_size": fact["page_size"],
            "kv_bytes_per_token": fact["kv_bytes_per_token"],
            "kv_tokens_in_memory": int(options.memory_gib * GIB / fact["kv_bytes_per_token"]),
        }  # fmt: skip
        rows.append(row)
    return rows


class Results:
    def __init__(self, path: pathlib.Path, about: dict[str, Any]) -> None:
        self.path, self.value = path, about

    def write(self, **values: Any) -> None:
        self.value.update(values)
        unfinished = self.path.with_name(self.path.name + ".part")
        unfinished.write_text(json.dumps(self.value, indent=1) + "\n")
        unfinished.replace(self.path)


def run_wave(
    number: int, names: list[str], options: argparse.Namespace, state: dict[str, Any], results: Results
) -> None:
    """Starts, measures and ends a wave; adds to `state`, which is written after each measurement."""
    deadline = time.perf_counter() + options.seconds
    config = json.loads((options.model / "config.json").read_text())
    cases = [(batch, context) for context in options.contexts for batch in options.batches]
    sizes = plan_caches(names, config, cases, options)
    for name in names:
        if name not in sizes:
            say(f"wave {number}: no room for {name}: left out")
            place = {"wave": number, "backend": name, "reason": "the GPU has no room for its cache in this wave"}
            state["skipped"] += [{**place, "batch": batch, "context": context} for batch, context in cases]
    names = [name for name in names if name in sizes]
    if not names:
        return
    say(f"wave {number}: " + ", ".join(f"{name} with {sizes[name] / GIB:.1f} GiB of cache" for name in names))
    mode = "eager" if options.eager else "graphs"
    specs = [
        {
            "tag": f"wave{number}-{mode}", "model": str(options.model), "load_format": "dummy",
            "weights": options.weights, "eager": options.eager, "batches": options.batches,
            "max_model_len": longest_request(options), "kv_bytes": sizes[name], "dtype": "bfloat16",
        }
        for name in names
    ]  # fmt: skip
    workers: list[Worker] = []

    def record(worker: Worker, answer: dict[str, Any] | None, **at: Any) -> dict[str, Any] | None:
        if answer is None or "error" in answer:
            error = worker.error or (answer or {}).get("error")
            state["errors"].append({"wave": number, "backend": worker.name, **at, "error": error})
            say(f"{worker.name} {at}: {error}")
            answer = None
        elif at.get("kind") in ("decode", "ttft"):
            place = {key: value for key, value in at.items() if key != "kind"}
            state["samples"].append({"wave": number, "backend": worker.name, **place, **answer})
        rows = summary(state["samples"], state["workers"], options)
        results.write(rows=rows, **state)
        return answer

    try:
        workers = start_wave(names, specs, options.logs, deadline - MEASURING_SHARE * options.seconds)
        for worker in workers:
            if worker.error:
                record(worker, None, kind="start")
            else:
                state["workers"][f"{number}:{worker.name}"] = worker.facts
        workers_up = [worker for worker in workers if worker.error is None]
        fitting: dict[str, list[tuple[int, int]]] = {}
        for worker in workers_up:
            room = worker.facts["kv_cache_tokens"] - PAGE  # a page is vLLM's own
            fitting[worker.name] = [case for case in cases if tokens_of(*case, options.steps) <= room]
            place = {"wave": number, "backend": worker.name, "reason": f"its cache has room for {room} tokens"}
            for batch, context in cases:
                if (batch, context) not in fitting[worker.name]:
                    state["skipped"].append({**place, "batch": batch, "context": context})
        for worker in workers_up:
            if not fitting[worker.name]:
                worker.error = "no case fits into its cache"
                continue
            answer = record(worker, worker.ask(deadline, "prime", cases=fitting[worker.name]), kind="prime")
            if answer:
                say(f"{worker.name} primed in {answer['seconds']:.1f} s")
        slowest = 0.0  # of the groups of measurements so far
        for turn in range(options.turns):
            for context in options.contexts:
                group = time.perf_counter()
                if group + slowest > deadline:
                    say("the time of this wave is over")
                    return
                for batch in options.batches:
                    rates = []
                    # Who comes first changes, so that nobody always has the cooler chip.
                    for worker in workers_up if turn % 2 == 0 else workers_up[::-1]:
                        if worker.error or (batch, context) not in fitting[worker.name]:
                            continue
                        answer = worker.ask(deadline, "decode", batch=batch, context=context, steps=options.steps)
                        answer = record(worker, answer, kind="decode", turn=turn, batch=batch, context=context)
                        rates += [f"{worker.name} {answer['tokens_per_s']:.1f}"] if answer else []
                    say(f"turn {turn}, batch {batch}, context {context}: {', '.join(rates)} tok/s")
                for worker in workers_up:
                    if worker.error or all(context != other for _, other in fitting[worker.name]):
                        continue
                    record(
                        worker, worker.ask(deadline, "ttft", context=context), kind="ttft", turn=turn, context=context
                    )
                slowest = max(slowest, time.perf_counter() - group)
    finally:
        for worker in workers:
            worker.stop()


def agreement(ours: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """How far two back ends' greedy sequences go together, and how the log-probabilities differ on that way.

    "gaps": where they part, how much likelier the first finds its own token than the other's; small from rounding.
    """
    common, differences, gaps = [], [], []
    count = len(ours["tokens"][0])
    rows = zip(ours["tokens"], other["tokens"], ours["best"], other["best"], strict=True)
    for mine, theirs, mine_best, theirs_best in rows:
        same = next((at for at in range(count) if mine[at] != theirs[at]), count)
        common.append(same)
        for at in range(same):
            token = str(mine[at])
            differences.append(abs(mine_best[at][token] - theirs_best[at][token]))
        if same < count:
            best = mine_best[same]
            # One that is not among the best is less likely than the last of them.
            gaps.append(best[str(mine[same])] - best.get(str(theirs[same]), min(best.values())))
    return {
        "sequences": len(common), "tokens_each": count, "equal_sequences": sum(same == count for same in common),
        "shortest_common": min(common), "common": common, "gaps": [round(gap, 5) for gap in gaps],
        "largest_gap": max(gaps, default=0.0), "logprob_difference_max": max(differences, default=0.0),
        "logprob_difference_median": statistics.median(differences or [0.0]),
    }  # fmt: skip


def check_tokens(options: argparse.Namespace, results: Results) -> int:
    """The exit code: 0 where all back ends ran. How far they agree is for the reader."""
    sys.path.insert(0, str(ROOT / "tests" / "engines"))
    import random_model

    deadline = time.perf_counter() + options.seconds
    names = options.waves[0]
    lengths = [5, 33, 64, 65, 100, 127, 128, 200, 257, 300, 400, 511, 512, 640, 777, 900]
    with tempfile.TemporaryDirectory() as folder:
        model = pathlib.Path(folder) / "model"
        random_model.write(model, dict(random_model.V2, num_attention_heads=16, num_key_value_heads=16))
        spec = {
            "tag": f"tokens-{options.dtype}", "model": str(model), "load_format": "auto", "weights": "on disk",
            "eager": options.eager, "batches": options.batches, "max_model_len": 1024, "kv_bytes": GIB,
            "dtype": options.dtype,
        }  # fmt: skip
        workers = start_wave(names, [spec] * len(names), options.logs, deadline)
        try:
            answers = {}
            for worker in workers:
                if worker.error is None:
                    answer = worker.ask(deadline, "tokens", lengths=lengths, count=64)
                    worker.error = worker.error or (answer or {}).get("error")
                    if answer and not worker.error:
                        answers[worker.name] = answer
        finally:
            for worker in workers:
                worker.stop()
    pairs = [
        {"of": one, "and": other, **agreement(answers[one], answers[other])}
        for one, other in itertools.combinations(answers, 2)
    ]
    results.write(
        workers={worker.name: worker.facts for worker in workers},
        errors=[{"backend": worker.name, "error": worker.error} for worker in workers if worker.error],
        agreement=pairs,
        distinct_tokens={
            name: len({token for row in answer["tokens"] for token in row}) for name, answer in answers.items()
        },
    )
    for pair in pairs:
        say(
            f"{pair['of']} and {pair['and']}: {pair['equal_sequences']} of {pair['sequences']} sequences equal, the "
            f"shortest common part has {pair['shortest_common']} of {pair['tokens_each']} tokens; largest gap there "
            f"{pair['largest_gap']:.4f}; log-probabilities differ by {pair['logprob_difference_max']:.4f} at most, "
            f"{pair['logprob_difference_median']:.1e} in the middle"
        )
    return 0 if len(answers) == len(names) else 1


def names_of(text: str) -> list[str]:
    names = text.split(",")
    for name in names:
        if name not in BACK_ENDS:
            raise argparse.ArgumentTypeError(f"got '{name}'; want names of {', '.join(BACK_ENDS)}")
    return names


def numbers_of(text: str) -> list[int]:
    return [int(number) for number in text.split(",")]


def cache_of(text: str) -> tuple[str, float]:
    name, _, size = text.partition("=")
    return names_of(name)[0], float(size)


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path, help="results, as JSON")
    parser.add_argument(
        "--waves", nargs="+", type=names_of, metavar="NAME,NAME",
        default=None, help=f"back ends that run beside one another: {', '.join(BACK_ENDS)}",
    )  # fmt: skip
    parser.add_argument("--model", type=pathlib.Path, default=ROOT / "bench" / "models" / "deepseek-v2-lite")
    parser.add_argument("--weights", choices=("normal", "dummy"), default="normal", help="dummy: vLLM's own")
    parser.add_argument("--eager", action="store_true", help="without compilation and CUDA graphs")
    parser.add_argument("--batches", type=numbers_of, default=[1, 8, 64])
    parser.add_argument("--contexts", type=numbers_of, default=[64, 1024, 4096])
    parser.add_argument("--steps", type=int, default=126, help="decode steps of a measurement")
    parser.add_argument("--turns", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=270.0, help="most time of a wave, start included")
    parser.add_argument("--max-model-len", type=int, default=4352)
    parser.add_argument(
        "--kv-gib", nargs="+", type=cache_of, default=[], metavar="NAME=GIB", help="size of a back end's cache"
    )
    parser.add_argument("--gpu-gib", type=float, help="memory of the GPU to plan with; else what is free on it")
    parser.add_argument("--memory-gib", type=float, default=100.0, help="for kv_tokens_in_memory alone")
    parser.add_argument("--logs", type=pathlib.Path, default=pathlib.Path(tempfile.gettempdir()) / "vllm-speed")
    parser.add_argument("--check-tokens", action="store_true")
    parser.add_argument(
        "--dtype", choices=("bfloat16", "float16"), default="bfloat16", help="of --check-tokens; speed is that of bf16"
    )
    parser.add_argument("--worker", choices=tuple(BACK_ENDS), help=argparse.SUPPRESS)
    parser.add_argument("--spec", type=json.loads, help=argparse.SUPPRESS)
    parser.add_argument("--answers", type=int, help=argparse.SUPPRESS)
    return parser


def main() -> int:
    parser = arguments()
    options = parser.parse_args()
    if options.worker:
        work(options.worker, options.spec, options.answers)
        return 0
    if options.out is None:
        parser.error("--out is missing")
    if options.waves is None:
        options.waves = [list(BACK_ENDS)] if options.check_tokens else [[OURS, "FLASH_ATTN_MLA", "FLASHMLA"]]
    options.model = options.model.resolve()
    options.logs.mkdir(parents=True, exist_ok=True)
    about = {
        "command": " ".join(sys.argv), "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "model": str(options.model.name), "memory_gib": options.memory_gib,
    }  # fmt: skip
    results = Results(options.out, about)
    if options.check_tokens:
        return check_tokens(options, results)
    state: dict[str, Any] = {"workers": {}, "errors": [], "skipped": [], "samples": []}
    for number, names in enumerate(options.waves):
        run_wave(number, names, options, state, results)
    results.write(rows=summary(state["samples"], state["workers"], options), **state)
    return 1 if state["errors"] else 0


if __name__ == "__main__":
    sys.exit(main())
