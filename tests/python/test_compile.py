"""torch custom ops: torch.compile(fullgraph=True), opcheck, fake shapes."""

import problem as problems
import pytest
from test_torch import options_of, tensors

import flashmla


def compiled(torch, function):
    torch._dynamo.reset()
    return torch.compile(function, fullgraph=True, backend="aot_eager")


@pytest.mark.parametrize("return_lse", [False, True])
def test_decode_in_a_full_graph(torch, return_lse):
    problem = problems.make(1, [20, 0, 7], seq_q=2)
    q, cache, table, lens = tensors(problem)

    def layer(q, cache, table, lens):
        return flashmla.decode(q * 2, cache, table, lens, **options_of(problem), return_lse=return_lse)

    got, want = compiled(torch, layer)(q, cache, table, lens), layer(q, cache, table, lens)
    for a, b in zip(got, want, strict=True) if return_lse else ((got, want),):
        assert torch.equal(a, b)


def test_inductor_compiles_it(torch):
    problem = problems.make(2, [20, 7])
    q, *rest = tensors(problem)

    def layer(q):
        return flashmla.decode(q + 1, *rest, **options_of(problem)) * 2

    torch._dynamo.reset()
    assert torch.equal(torch.compile(layer, fullgraph=True)(q), layer(q))


def test_dynamic_batch_compiles_once(torch):
    problem = problems.make(3, [20, 7, 9, 40, 3])
    q, cache, table, lens = tensors(problem)

    def layer(q, table, lens):
        return flashmla.decode(q, cache, table, lens, **options_of(problem))

    torch._dynamo.reset()
    counter = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
    function = torch.compile(layer, fullgraph=True, dynamic=True, backend=counter)
    frames = []
    for batch in (2, 3, 5):
        arrays = q[:batch].clone(), table[:batch].clone(), lens[:batch].clone()
        assert torch.equal(function(*arrays), layer(*arrays))
        frames.append(counter.frame_count)
    assert frames[0] > 0 and frames[1:] == frames[:1] * 2


def test_writes_in_a_full_graph_reach_the_caller(torch):
    problem = problems.make(4, [20, 7])
    q, cache, table, lens = tensors(problem)
    slots = torch.tensor([1, 0, -1, 17])
    latent, rope = torch.randn(4, 64), torch.randn(4, 16)
    want_cache = cache.clone()
    flashmla.append_kv(latent, rope, want_cache, slots)
    want = flashmla.decode(q, want_cache, table, lens, **options_of(problem))
    out = torch.full_like(want, torch.nan)

    def step(latent, rope, cache, out):
        flashmla.append_kv(latent, rope, cache, slots)
        flashmla.decode(q, cache, table, lens, **options_of(problem), out=out)

    compiled(torch, step)(latent, rope, cache, out)
    assert torch.equal(cache.nan_to_num(7.0), want_cache.nan_to_num(7.0))
    assert torch.equal(out.nan_to_num(7.0), want.nan_to_num(7.0))


def test_merge_in_a_full_graph(torch):
    a, b, lse_a, lse_b = torch.randn(3, 2, 8), torch.randn(3, 2, 8), torch.randn(2, 3), torch.randn(2, 3)

    def merge(a, b):
        return flashmla.merge_states(a, lse_a, b, lse_b)

    for got, want in zip(compiled(torch, merge)(a, b), merge(a, b), strict=True):
        assert torch.equal(got, want)


def test_opcheck(torch):
    """torch's own test of schema, fake kernel and dispatch."""
    problem = problems.make(5, [20, 7])
    q, cache, table, lens = tensors(problem)
    flashmla.decode(q, cache, table, lens, **options_of(problem))  # defines the ops
    inputs = (q, None, cache.nan_to_num(0.0), table, lens, None)
    options = (problem.scale, False, 64, None, "+inf", 0, False, None, None, 0)
    ops = torch.ops.flashmla
    torch.library.opcheck(ops.decode.default, inputs + options)
    torch.library.opcheck(ops.decode_out.default, (*inputs, torch.zeros(2, 1, 4, 64), torch.zeros(2, 4, 1), *options))
    slots = torch.tensor([3, -1])
    append = (torch.randn(2, 64), torch.randn(2, 16), inputs[2], slots, None, None, None, 0)
    torch.library.opcheck(ops.append_kv.default, append)
    states = (torch.randn(3, 2, 8), torch.randn(2, 3), torch.randn(3, 2, 8), torch.randn(2, 3))
    torch.library.opcheck(ops.merge_states.default, (*states, "+inf", None, None, 0))
    results = (torch.zeros(3, 2, 8), torch.zeros(2, 3))
    torch.library.opcheck(ops.merge_states_out.default, (*states, *results, "+inf", None, None, 0))


def test_drop_in_in_a_full_graph(torch):
    problem = problems.make(8, [20, 0, 7], seq_q=2)
    q, cache, table, lens = tensors(problem)
    flash_mla = flashmla.flash_mla
    metadata, _ = flash_mla.get_mla_metadata()

    def layer(q):
        return flash_mla.flash_mla_with_kvcache(q * 2, cache, table, lens, 64, metadata, causal=True)

    for got, want in zip(compiled(torch, layer)(q), layer(q), strict=True):
        assert torch.equal(got, want)


def test_meta_tensors_give_shapes(torch):
    problem = problems.make(6, [20, 7], seq_q=3)
    arrays = [tensor.to("meta") for tensor in tensors(problem)]
    out, lse = flashmla.decode(*arrays, **options_of(problem), return_lse=True)
    assert out.shape == (2, 3, 4, 64) and lse.shape == (2, 4, 3) and out.device.type == "meta"


def test_wrong_rank_is_an_error_while_tracing(torch):
    problem = problems.make(7, [20])
    q, *rest = (tensor.to("meta") for tensor in tensors(problem))
    with pytest.raises(ValueError, match="q: got 3 dimensions; want 4"):
        flashmla.decode(q[0], *rest, **options_of(problem))
