"""The drop-in over the shapes of its users, against a torch fp32 formula. All shapes under FLASHMLA_TEST_FULL=1."""

import itertools
import math
import random

import pytest

from conftest import FULL, need, places

AXES = {
    "batch": (1, 2, 6, 64),
    "seq_q": (1, 2, 4),
    "seq_k": (20, 140, 4096),
    "heads_q": (1, 3, 9, 63, 64, 126, 128),
    "heads_kv": (1, 2, 3, 8),
    "lengths": ("equal", "varied", "varied with zeros", "all zero"),
    "causal": (False, True),
    "page": (64, 16, 61),
    "generation": (1, 2),
}
# In the full sweep the last axes take turns instead of multiplying the work.
TAKE_TURNS = ("page", "generation")
WIDTH, VALUE_WIDTH = 576, 512


def divides(case):
    return case["heads_q"] % case["heads_kv"] == 0


def every_case():
    crossed = [axis for axis in AXES if axis not in TAKE_TURNS]
    cases = [dict(zip(crossed, values, strict=True)) for values in itertools.product(*(AXES[a] for a in crossed))]
    for index, case in enumerate(cases):
        case.update({axis: AXES[axis][index // 7 % len(AXES[axis])] for axis in TAKE_TURNS})
    return [case for case in cases if divides(case)]


def work(case):
    """About how long a case takes: attention, and the making of its cache."""
    return case["batch"] * case["seq_k"] * (case["seq_q"] * case["heads_q"] + 30 * case["heads_kv"])


def legal_pairs():
    """Every two values of two axes that some case may have."""
    for first, second in itertools.combinations(AXES, 2):
        for pair in itertools.product(AXES[first], AXES[second]):
            case = dict(zip((first, second), pair, strict=True))
            if len(case.keys() & {"heads_q", "heads_kv"}) < 2 or divides(case):
                yield tuple(case.items())


def covering_cases():
    """Few cases in which every legal pair occurs; of equally good candidates, the cheapest."""
    chooser = random.Random(20)
    open_pairs = list(legal_pairs())
    chosen = []
    while open_pairs:
        candidates = []
        while len(candidates) < 60:
            case = {axis: chooser.choice(values) for axis, values in AXES.items()} | dict(open_pairs[0])
            if divides(case):
                candidates.append(case)
        candidates = sorted(candidates, key=work)[:20]
        best = max(candidates, key=lambda case: sum(dict(pair).items() <= case.items() for pair in open_pairs))
        open_pairs = [pair for pair in open_pairs if not dict(pair).items() <= best.items()]
        chosen.append(best)
    return chosen


def case_id(case):
    return "-".join(str(value).replace(" ", "_") for value in case.values())


CASES = every_case() if FULL else covering_cases()


def make_inputs(torch, case):
    """q, the pool, the table and the lengths; NaN everywhere that no valid token is, garbage in table tails."""
    generator = torch.Generator().manual_seed(work(case))
    batch, page = case["batch"], case["page"]
    lens = torch.full((batch,), case["seq_k"], dtype=torch.int32)
    if case["lengths"].startswith("varied"):
        lens = torch.randint(1, case["seq_k"] + 1, (batch,), generator=generator, dtype=torch.int32)
    if case["lengths"] == "varied with zeros":
        lens[torch.rand(batch, generator=generator) < 0.4] = 0
        lens[-1] = 0
    if case["lengths"] == "all zero":
        lens.zero_()
    used = (lens + page - 1) // page
    pages = int(used.sum()) + 2
    order = torch.randperm(pages, generator=generator, dtype=torch.int32)
    table = torch.full((batch, math.ceil(case["seq_k"] / page) + 1), 2**31 - 1, dtype=torch.int32)
    shape = (pages, page, case["heads_kv"], WIDTH)
    # Values as in the published test that these tolerances come from. (The contract's bound, which scales with the
    # values, is checked on larger ones in test_decode_numpy.py.)
    cache = torch.randn(shape, generator=generator, dtype=torch.bfloat16).div_(10).clamp_(-1, 1)
    first = 0
    for request in range(batch):
        count = int(used[request])
        table[request, :count] = order[first : first + count]
        if count > 0 and int(lens[request]) % page != 0:
            cache[table[request, count - 1], int(lens[request]) % page :] = torch.nan
        first += count
    cache[order[first:].long()] = torch.nan
    q = torch.randn(batch, case["seq_q"], case["heads_q"], WIDTH, generator=generator).clamp(-1, 1).to(torch.bfloat16)
    return q, cache, table, lens


def formula(torch, q, cache, table, lens, causal):
    """softmax(q k^T / sqrt(d)) v in fp32, one request at a time; rows without keys give 0 and +inf."""
    batch, seq_q, heads_q, width = q.shape
    page, heads_kv = cache.shape[1:3]
    out = torch.zeros(batch, seq_q, heads_q, VALUE_WIDTH)
    lse = torch.full((batch, heads_q, seq_q), torch.inf)
    for request in range(batch):
        length = int(lens[request])
        if length == 0:
            continue
        pages = table[request, : -(-length // page)].long()
        keys = cache[pages].flatten(0, 1)[:length].float().transpose(0, 1)
        group = heads_q // heads_kv
        rows = q[request].float().view(seq_q, heads_kv, group, width).permute(1, 2, 0, 3).reshape(heads_kv, -1, width)
        scores = (rows @ keys.mT * width**-0.5).view(heads_q, seq_q, length)
        if causal:
            last = length - seq_q + torch.arange(seq_q)
            scores.masked_fill_(torch.arange(length) > last[None, :, None], -torch.inf)
        sums = scores.logsumexp(-1)
        sees = sums > -torch.inf
        weights = (scores - torch.where(sees, sums, 0).unsqueeze(-1)).exp_()
        values = weights.view(heads_kv, -1, length) @ keys[..., :VALUE_WIDTH]
        out[request] = values.view(heads_q, seq_q, VALUE_WIDTH).transpose(0, 1)
        lse[request] = torch.where(sees, sums, torch.inf)
    return out, lse


def assert_close(torch, name, got, want, absolute, relative):
    """An element fails when its error exceeds both limits; places of infinities are compared first."""
    got, want = got.double(), want.double()
    assert not got.isnan().any(), f"{name}: NaN at {got.isnan().nonzero()[0].tolist()}"
    assert torch.equal(got.isposinf(), want.isposinf()), f"{name}: +inf in other places"
    error = (got - want).masked_fill(want.isposinf(), 0).abs()
    bad = (error > absolute) & (error > relative * want.abs())
    if bad.any():
        worst = error.masked_fill(~bad, 0).argmax()
        place = torch.unravel_index(worst, error.shape)
        pytest.fail(
            f"{name}: {int(bad.sum())} of {bad.numel()} wrong; worst at {[int(i) for i in place]}: got "
            f"{got.flatten()[worst].item()}, want {want.flatten()[worst].item()}"
        )


def cosine_difference(got, want):
    got, want = got.double().flatten(), want.double().flatten()
    norms = got @ got + want @ want
    return 0.0 if norms == 0 else 1 - 2 * (got @ want) / norms


def run_case(torch, case):
    from flashmla.flash_mla import flash_mla_with_kvcache, get_mla_metadata

    q, cache, table, lens = make_inputs(torch, case)
    counts = case["seq_q"] * case["heads_q"] // case["heads_kv"], case["heads_kv"]
    metadata, splits = get_mla_metadata(lens, *counts) if case["generation"] == 1 else get_mla_metadata()
    out, lse = flash_mla_with_kvcache(
        q, cache, table, lens, VALUE_WIDTH, metadata, splits, causal=case["causal"]
    )
    want_out, want_lse = formula(torch, q, cache, table, lens, case["causal"])
    assert out.dtype == torch.bfloat16 and lse.dtype == torch.float32
    assert out.shape == want_out.shape and lse.shape == want_lse.shape
    assert_close(torch, "out", out, want_out, 8e-4, 2.01 / 128)
    assert_close(torch, "lse", lse, want_lse, 1e-6, 8.01 / 65536)
    assert cosine_difference(out, want_out) <= 5e-6


@pytest.mark.parametrize("case", CASES, ids=case_id)
def test_sweep(torch, case):
    run_case(torch, case)


@pytest.mark.parametrize("place", places())
@pytest.mark.parametrize("heads", [(1, 1), (63, 3), (128, 1)])
def test_every_back_end_and_isa(torch, monkeypatch, place, heads):
    """The drop-in has no argument for them: the environment chooses."""
    monkeypatch.setenv("FLASHMLA_BACKEND", place["backend"])
    monkeypatch.setenv("FLASHMLA_ISA", place.get("isa", ""))
    for lengths, causal in (("varied with zeros", True), ("equal", False)):
        run_case(
            torch,
            {"batch": 3, "seq_q": 2, "seq_k": 140, "heads_q": heads[0], "heads_kv": heads[1], "lengths": lengths,
             "causal": causal, "page": 64, "generation": 2},
        )  # fmt: skip


@pytest.mark.parametrize(
    "heads_q, heads_kv",
    [(q, kv) for q in AXES["heads_q"] for kv in AXES["heads_kv"] if q % kv != 0],
)
def test_heads_that_do_not_divide_are_refused_by_name(torch, heads_q, heads_kv):
    from flashmla.flash_mla import flash_mla_with_kvcache, get_mla_metadata

    case = {axis: values[0] for axis, values in AXES.items()} | {"heads_q": heads_q, "heads_kv": heads_kv}
    q, cache, table, lens = make_inputs(torch, case)
    with pytest.raises(ValueError, match=f"h_q: got h_q = {heads_q} with h_kv = {heads_kv}; want .*h_kv divides h_q"):
        flash_mla_with_kvcache(q, cache, table, lens, VALUE_WIDTH, *get_mla_metadata())


def test_the_comparison_can_fail():
    torch = need("torch")
    want = torch.tensor([1.0, 1e-5])
    assert_close(torch, "out", torch.tensor([1.0 + 2.0 / 128, 1e-5 + 7e-4]), want, 8e-4, 2.01 / 128)
    for wrong in ([1.0 + 2.1 / 128, 1e-5], [1.0, 1e-5 + 9e-4], [torch.nan, 1e-5], [torch.inf, 1e-5]):
        with pytest.raises((AssertionError, pytest.fail.Exception)):
            assert_close(torch, "out", torch.tensor(wrong), want, 8e-4, 2.01 / 128)
    assert cosine_difference(want, want) == 0 and cosine_difference(want * 1.01, want) > 5e-6


def test_covering_cases_cover():
    chosen = covering_cases()
    for (first, value), (second, other) in legal_pairs():
        assert any(case[first] == value and case[second] == other for case in chosen), (first, value, second, other)
    assert all(divides(case) for case in chosen)
