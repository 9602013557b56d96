"""bench/serving/vllm_speed.py, without vLLM: which caches it plans in the memory of a GPU."""

import json
import pathlib
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "bench" / "serving"))
import vllm_plan  # noqa: E402
import vllm_speed  # noqa: E402
from vllm_engine import BACK_ENDS, PAGE  # noqa: E402

H200 = 139.8  # GiB, free


def plan(names, *arguments):
    """Bytes of each name's cache, the cases for which it has room, and all cases."""
    options = vllm_speed.arguments().parse_args(["--gpu-gib", str(H200), *arguments])
    config = json.loads((options.model / "config.json").read_text())
    cases = [(batch, context) for context in options.contexts for batch in options.batches]
    sizes = vllm_plan.plan_caches(names.split(","), config, cases, options)
    weights = vllm_plan.weight_gib_of(config) + vllm_plan.RESERVE_GIB
    assert len(sizes) * weights + sum(sizes.values()) / vllm_plan.GIB <= H200
    fitting = {}
    for name, size in sizes.items():
        tokens = size // vllm_plan.kv_bytes_of(config, BACK_ENDS[name].mla)
        assert tokens >= options.max_model_len + PAGE  # what vLLM wants, and a page of its own
        fitting[name] = {case for case in cases if vllm_plan.tokens_of(*case, options.steps) <= tokens - PAGE}
    return sizes, fitting, set(cases)


def test_sizes_are_those_that_vllm_said():
    options = vllm_speed.arguments().parse_args([])
    config = json.loads((options.model / "config.json").read_text())
    assert vllm_plan.kv_bytes_of(config, mla=True) == 31104 and vllm_plan.kv_bytes_of(config, mla=False) == 331776
    assert vllm_plan.weight_gib_of(config) == pytest.approx(29.32, abs=0.1)


def test_mla_has_room_for_all_cases_and_mha_for_some():
    sizes, fitting, cases = plan("ours,TRITON_MLA,MHA")
    assert fitting["ours"] == fitting["TRITON_MLA"] == cases
    assert fitting["MHA"] == cases - {(64, 4096)}
    assert sizes["MHA"] > sizes["ours"]


def test_a_back_end_without_room_for_any_case_is_left_out():
    case = ("--batches", "64", "--contexts", "4096")
    assert set(plan("ours,MHA", *case)[0]) == {"ours"}
    sizes, fitting, cases = plan("MHA", *case)
    assert fitting == {"MHA": cases} and sizes["MHA"] / vllm_plan.GIB == pytest.approx(83.6, abs=0.1)


def test_small_cases_have_what_vllm_wants_of_a_cache():
    _, fitting, cases = plan("ours,MHA", "--batches", "1", "--contexts", "64")
    assert fitting == {"ours": cases, "MHA": cases}


def test_a_size_that_was_asked_for_is_kept():
    assert plan("ours,MHA", "--kv-gib", "MHA=40")[0]["MHA"] == 40 * vllm_plan.GIB
