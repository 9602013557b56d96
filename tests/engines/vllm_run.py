"""Runs vLLM engines one after the other in this process: `python vllm_run.py RUNS.json RESULTS.json`.

RUNS is a list of {"name", "model", "backend", "prompts": lists of token ids, "max_tokens", "rounds", "engine": further arguments
of vllm.LLM}. For each, RESULTS has the tokens of each round's prompts and what was seen of the engine inside; for one that is
"refused", the engine's error.
"""

import collections
import gc
import json
import os
import sys


def observe(counts):
    """Counts the calls that tell which path a run took."""
    import flashmla
    from vllm.v1.core.sched.scheduler import Scheduler

    def counted(owner, name):
        original = getattr(owner, name)

        def call(*arguments, **options):
            counts[name] += 1
            return original(*arguments, **options)

        setattr(owner, name, call)

    decode = flashmla.decode

    def decode_by_kind(q, *arguments, **options):
        counts["ragged" if options["cu_seqlens_q"] is not None else "single" if q.shape[1] == 1 else "uniform"] += 1
        return decode(q, *arguments, **options)

    flashmla.decode = decode_by_kind
    for name in ("decode", "append_kv", "prefill"):
        counted(flashmla, name)
    counted(Scheduler, "_preempt_request")
    from flashmla.engines.vllm.prefill import FlashMLAPrefillBackend

    counted(FlashMLAPrefillBackend, "run_prefill_context_chunk")


def engine(spec):
    from vllm import LLM

    return LLM(
        model=spec["model"], attention_backend=spec["backend"], enforce_eager=True, skip_tokenizer_init=True, seed=0,
        **{"max_model_len": 1024, "max_num_seqs": 8, "dtype": "float32", **spec.get("engine", {})},
    )  # fmt: skip


def run(spec, counts):
    from vllm import SamplingParams
    from vllm.distributed import cleanup_dist_env_and_memory

    if spec.get("refused"):
        try:
            engine(spec)
        except Exception as error:
            return {"error": f"{type(error).__name__}: {error}"}
        finally:
            cleanup_dist_env_and_memory()
        return {"error": "none: the engine started"}
    counts.clear()
    llm = engine(spec)
    sampling = SamplingParams(
        temperature=0, max_tokens=spec["max_tokens"], ignore_eos=spec.get("ignore_eos", True),
        stop_token_ids=spec.get("stop_token_ids"), detokenize=False, logprobs=1,
    )  # fmt: skip
    rounds = []
    for _ in range(spec.get("rounds", 1)):
        outputs = llm.generate([{"prompt_token_ids": prompt} for prompt in spec["prompts"]], sampling, use_tqdm=False)
        rounds.append([
            {
                "tokens": list(output.outputs[0].token_ids),
                "logprobs": [step[token].logprob for step, token in zip(output.outputs[0].logprobs, output.outputs[0].token_ids)],
                "cached": output.num_cached_tokens,
            }
            for output in outputs
        ])  # fmt: skip
    result = {"rounds": rounds, "counts": dict(counts)}
    core = llm.llm_engine.engine_core.engine_core
    runner = core.model_executor.driver_worker.worker.model_runner
    layers = [
        layer for name, layer in runner.compilation_config.static_forward_context.items() if name.endswith("self_attn.attn")
    ]
    result["impl"] = sorted({f"{type(layer.impl).__module__}.{type(layer.impl).__name__}" for layer in layers})
    result["prefill"] = sorted({type(layer.prefill_backend).__name__ for layer in layers})
    result["page"] = layers[0].kv_cache.shape[1]
    result["layers"] = len(layers)
    del llm, core, runner, layers
    gc.collect()
    cleanup_dist_env_and_memory()
    return result


def main():
    # In this process, so that what ran can be looked at; nothing is asked of a network.
    os.environ.update(
        VLLM_ENABLE_V1_MULTIPROCESSING="0", HF_HUB_OFFLINE="1", TRANSFORMERS_OFFLINE="1", VLLM_NO_USAGE_STATS="1",
        VLLM_CPU_KVCACHE_SPACE="1",
    )  # fmt: skip
    with open(sys.argv[1]) as file:
        specs = json.load(file)
    counts = collections.Counter()
    observe(counts)
    results = {spec["name"]: run(spec, counts) for spec in specs}
    with open(sys.argv[2], "w") as file:
        json.dump(results, file)


if __name__ == "__main__":
    main()
