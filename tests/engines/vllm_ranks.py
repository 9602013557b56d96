"""One vLLM engine with worker processes: `python vllm_ranks.py RUN.json RESULT.json`, RUN as one of vllm_run.py's.

RESULT has the tokens, and of each rank the class that computes attention and its number of heads.
"""

import json
import os
import sys


def attention(worker):
    layers = worker.model_runner.compilation_config.static_forward_context
    impl = layers["model.layers.0.self_attn.attn"].impl
    return f"{type(impl).__module__}.{type(impl).__name__}", impl.num_heads


def main():
    os.environ.update(
        HF_HUB_OFFLINE="1", TRANSFORMERS_OFFLINE="1", VLLM_NO_USAGE_STATS="1", VLLM_CPU_KVCACHE_SPACE="1",
        VLLM_ALLOW_INSECURE_SERIALIZATION="1",  # lets `attention` travel to the workers
    )  # fmt: skip
    from vllm import SamplingParams
    from vllm_run import engine

    with open(sys.argv[1]) as file:
        spec = json.load(file)
    llm = engine(spec)
    sampling = SamplingParams(temperature=0, max_tokens=spec["max_tokens"], ignore_eos=True, detokenize=False)
    outputs = llm.generate([{"prompt_token_ids": prompt} for prompt in spec["prompts"]], sampling, use_tqdm=False)
    result = {"tokens": [list(output.outputs[0].token_ids) for output in outputs], "ranks": llm.collective_rpc(attention)}
    with open(sys.argv[2], "w") as file:
        json.dump(result, file)


if __name__ == "__main__":
    main()
