"""CUDA tensors against the CPU path and the formula; streams, graphs, devices, torch.compile. Skipped without a GPU."""

import shutil
import subprocess
import sys

import numpy as np
import problem as problems
import pytest
from test_flash_mla import IMPORTS, SCRIPT
from test_torch import as_stored, options_of, tensors

import flashmla
from conftest import HAS_CUDA, need

LENS = [0, 1, 63, 64, 65, 700]
TUNED = {"latent_dim": 512, "rope_dim": 64, "heads_q": 16, "page_size": 64, "dtype": "bf16"}


@pytest.fixture
def torch():
    torch = need("torch")
    if not HAS_CUDA:
        pytest.skip("needs a build of flashmla with CUDA")
    if not torch.cuda.is_available():
        pytest.skip("needs an NVIDIA GPU that torch can use")
    return torch


def on_gpu(problem, device="cuda"):
    return [tensor.to(device) for tensor in tensors(problem)]


def close(torch, got, want):
    """Results of two back ends, in 16-bit precision."""
    torch.testing.assert_close(got.float().cpu(), want.float().cpu(), rtol=2e-2, atol=1e-2)


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    "latent_dim, rope_dim, heads_q, page_size", [(512, 64, 16, 64), (512, 64, 37, 61), (256, 32, 5, 16)]
)
def test_decode_is_within_the_bound(torch, dtype, causal, latent_dim, rope_dim, heads_q, page_size):
    problem = problems.make(1, LENS, seq_q=2, latent_dim=latent_dim, rope_dim=rope_dim, heads_q=heads_q,
                            page_size=page_size, dtype=dtype, causal=causal)  # fmt: skip
    arrays = on_gpu(problem)
    out, lse = flashmla.decode(*arrays, **options_of(problem), return_lse=True)
    assert out.device == lse.device == arrays[0].device and out.dtype == arrays[0].dtype
    problems.check(problem, as_stored(out.cpu()), lse.cpu().numpy())
    _, lse = flashmla.decode(*arrays, **options_of(problem), return_lse=True, empty_lse="-inf")
    problems.check(problem, as_stored(out.cpu()), lse.cpu().numpy(), marker=-np.inf)


def test_ragged_queries_split_queries_and_given_outputs(torch):
    problem = problems.make(2, LENS, seq_q=2, **TUNED)
    q, cache, table, lens = on_gpu(problem)
    want, want_lse = flashmla.decode(q, cache, table, lens, **options_of(problem), return_lse=True)
    starts = torch.arange(0, 2 * len(LENS) + 1, 2, dtype=torch.int32, device="cuda")
    ragged = flashmla.decode(q.flatten(0, 1), cache, table, lens, **options_of(problem), cu_seqlens_q=starts)
    close(torch, ragged, want.flatten(0, 1))
    buffer = torch.full((16, len(LENS), 2, 512), torch.nan, dtype=torch.bfloat16, device="cuda")
    out, lse = buffer.permute(1, 2, 0, 3), torch.full_like(want_lse, torch.nan)
    given = flashmla.decode(q[..., :512].contiguous(), cache, table, lens, **options_of(problem), q_rope=q[..., 512:],
                            out=out, lse=lse, return_lse=True)  # fmt: skip
    assert given[0] is out and given[1] is lse
    assert torch.equal(out, want) and torch.equal(lse, want_lse)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_append_is_the_cpu_path_bit_for_bit(torch, dtype):
    dtype = getattr(torch, dtype)
    rows = torch.randn(300, 640, dtype=dtype)
    slots = torch.randint(-5, 5 * 64, (300,))
    pool = torch.zeros(5, 3, 64, 576, dtype=dtype)
    for shift in (0, 1):  # aligned rows, and others
        latent, rope = rows[:, shift : 512 + shift], rows[:, 560 + shift : 624 + shift]
        want = pool.clone()
        flashmla.append_kv(latent, rope, want[:, 1], slots)
        got, gpu = pool.cuda(), rows.cuda()
        flashmla.append_kv(gpu[:, shift : 512 + shift], gpu[:, 560 + shift : 624 + shift], got[:, 1], slots.cuda())
        assert torch.equal(got.cpu(), want)
        past = torch.where(slots < 0, 5 * 64 + 7, slots)  # skipped, not dereferenced
        again = pool.cuda()
        flashmla.append_kv(gpu[:, shift : 512 + shift], gpu[:, 560 + shift : 624 + shift], again[:, 1], past.cuda())
        assert torch.equal(again.cpu(), want)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_merge_is_the_cpu_path(torch, dtype):
    dtype = getattr(torch, dtype)
    a, b, lse_a, lse_b = torch.randn(70, 16, 512), torch.randn(70, 16, 512), torch.randn(16, 70), torch.randn(16, 70)
    lse_a[:, ::3], lse_b[:, ::4], lse_b[:, 1] = torch.inf, -torch.inf, torch.inf
    a[::3] = torch.nan
    states = [a.to(dtype), lse_a, b.to(dtype), lse_b]
    for marker in ("+inf", "-inf"):
        want, want_lse = flashmla.merge_states(*states, empty_lse=marker)
        gpu = [tensor.cuda() for tensor in states]
        got, lse = flashmla.merge_states(*gpu, empty_lse=marker)
        step = {torch.bfloat16: 2**-7, torch.float16: 2**-10, torch.float32: 1e-5}[dtype]
        torch.testing.assert_close(got.cpu(), want, rtol=step, atol=1e-5)
        torch.testing.assert_close(lse.cpu(), want_lse, rtol=1e-6, atol=1e-6)
        again = flashmla.merge_states(*gpu, empty_lse=marker, out=gpu[0], lse=gpu[1])
        assert again[0] is gpu[0] and torch.equal(gpu[0], got) and torch.equal(gpu[1], lse)


def test_drop_in(torch):
    flash_mla = flashmla.flash_mla
    problem = problems.make(3, LENS, seq_q=2, **TUNED, causal=True)
    q, cache, table, lens = on_gpu(problem)
    want = flash_mla.flash_mla_with_kvcache(*tensors(problem), 512, *flash_mla.get_mla_metadata(), causal=True)
    for metadata in (flash_mla.get_mla_metadata(), flash_mla.get_mla_metadata(lens, 32, 1)):
        out, lse = flash_mla.flash_mla_with_kvcache(q, cache, table, lens, 512, *metadata, causal=True)
        close(torch, out, want[0])
        close(torch, lse, want[1])
    with pytest.raises(ValueError, match="^block_table: got a tensor on cpu in a call with tensors on cuda:0"):
        flash_mla.flash_mla_with_kvcache(q, cache, table.cpu(), lens, 512, *flash_mla.get_mla_metadata())
    starts = torch.tensor([0, 3], dtype=torch.int32, device="cuda")
    k = torch.zeros(3, 1, 64, device="cuda", dtype=torch.bfloat16)
    with pytest.raises(NotImplementedError, match="prefill: back end 'cuda' does not offer it"):
        flash_mla.flash_attn_varlen_func(k, k, k, starts, starts, 3, 3)


def test_a_benchmark_script_runs_unchanged(torch, tmp_path):
    script = tmp_path / "bench.py"
    defaults = "torch.set_default_dtype(torch.bfloat16); torch.set_default_device('cuda')"
    script.write_text(SCRIPT.format(imports=IMPORTS["package"], defaults=defaults))
    for generation in ("1", "2"):
        done = subprocess.run([sys.executable, "-m", "flashmla.compat", str(script), "--generation", generation],
                              capture_output=True, text=True, timeout=300)  # fmt: skip
        assert done.returncode == 0, done.stderr


def test_what_is_not_there_is_refused_by_name(torch):
    problem = problems.make(4, [20, 7])
    arrays = on_gpu(problem)
    with pytest.raises(NotImplementedError, match="^dtype: got fp32, .*bf16 and fp16 on back end 'cuda'"):
        flashmla.decode(*arrays, **options_of(problem))
    with pytest.raises(NotImplementedError, match="^kv_cache: got dtype fp32, .*bf16 and fp16 on back end 'cuda'"):
        rows = torch.zeros(1, 64, device="cuda")
        flashmla.append_kv(rows, rows[:, :16], arrays[1], torch.zeros(1, dtype=torch.int64, device="cuda"))
    with pytest.raises(ValueError, match="^backend: got 'cpu' for a call on CUDA; want tensors on CPU"):
        flashmla.decode(*arrays, **options_of(problem), backend="cpu")
    with pytest.raises(ValueError, match="^stream: got 0 with torch tensors"):
        flashmla.decode(*arrays, **options_of(problem), stream=0)


def test_mixed_devices_are_refused_by_name(torch):
    problem = problems.make(5, [20, 7], **TUNED)
    gpu, cpu = on_gpu(problem), tensors(problem)
    for place, name in enumerate(("q", "kv_cache", "page_table", "seq_lens")):
        mixed = [cpu[at] if at == place else tensor for at, tensor in enumerate(gpu)]
        with pytest.raises(ValueError, match=f"^{name if place else 'kv_cache'}: got a tensor on .* want one device"):
            flashmla.decode(*mixed, **options_of(problem))
        with pytest.raises((ValueError, RuntimeError), match="one device|same device"):  # the op, past the checks
            torch.ops.flashmla.decode(mixed[0], None, *mixed[1:], None, 0.1, False, 512, None, "+inf", 0, False, None,
                                      None, 0)  # fmt: skip


def test_graph_replays_with_changed_inputs(torch):
    """Captured once: append, decode, merge. Lengths, tables, queries and rows change between replays."""
    problem = problems.make(6, [700, 64, 300, 5], seq_q=2, causal=True, **TUNED)
    q, cache, table, lens = on_gpu(problem)
    cache = cache.nan_to_num(0.0)
    slots = torch.tensor([3, -1, 70], device="cuda")
    latent, rope = (torch.randn(3, width, device="cuda", dtype=torch.bfloat16) for width in (512, 64))

    def step(cache):
        flashmla.append_kv(latent, rope, cache, slots)
        out, lse = flashmla.decode(q, cache, table, lens, **options_of(problem), return_lse=True)
        rows, sums = out.flatten(0, 1), lse.permute(1, 0, 2).flatten(1)
        return *flashmla.merge_states(rows, sums, rows, sums), out

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        step(cache)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = step(cache)
    for replay, lengths in enumerate(([700, 64, 300, 5], [1, 0, 704, 0], [0, 0, 0, 0], [128, 700, 2, 320])):
        q.copy_(torch.randn(q.shape))
        table.copy_(torch.randint(0, cache.shape[0], table.shape))
        lens.copy_(torch.tensor(lengths))
        latent.fill_(replay + 1)
        before = cache.clone()
        graph.replay()
        want_cache = before.clone()
        want = step(want_cache)
        assert torch.equal(cache, want_cache), f"replay {replay}: the cache"
        for got, expected in zip(results, want, strict=True):
            assert torch.equal(got, expected), f"replay {replay}"


def test_status_says_what_is_wrong_with_the_values(torch):
    problem = problems.make(13, [700, 64, 300, 5], **TUNED)
    q, cache, table, lens = on_gpu(problem)
    rows = torch.ones(3, 576, device="cuda", dtype=torch.bfloat16)
    latent, rope = rows[:, :512], rows[:, 512:]
    status, written = (torch.full((1,), -99, dtype=torch.int32, device="cuda") for _ in range(2))
    past = cache.shape[0] * 64

    def step(status, written):
        flashmla.append_kv(latent, rope, pool, slots, status=written)
        return flashmla.decode(q, cache, table, lens, **options_of(problem), status=status)

    want = flashmla.decode(q, cache, table, lens, **options_of(problem))
    for lengths, page, slot, codes in (
        ([700, 64, 300, 5], None, 3, (0, 0)),
        ([700, 64, -1, 5], None, -1, (3, 0)),
        ([700, 64, 300, 10**6], None, past, (3, 4)),
        ([700, 64, 300, 5], cache.shape[0], past - 1, (1, 0)),
        ([700, 64, 300, 0], -1, 2**40, (1, 4)),
    ):
        bad_table = table.clone()
        if page is not None:
            bad_table[2, 4] = page
        pool, slots = torch.zeros_like(cache), torch.tensor([0, slot, 1], device="cuda")
        got = flashmla.decode(q, cache, bad_table, torch.tensor(lengths, dtype=torch.int32, device="cuda"),
                              **options_of(problem), status=status)  # fmt: skip
        flashmla.append_kv(latent, rope, pool, slots, status=written)
        assert (status.item(), written.item()) == codes
        if codes[0] == 0:
            assert torch.equal(got, want)
    # Captured, and in torch.compile's graph: the values of each replay count.
    pool, slots = torch.zeros_like(cache), torch.tensor([0, 2, 1], device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step(status, written)
    good = lens.clone()
    for bad in (False, True, False):
        lens.copy_(-good if bad else good)
        slots[1] = past if bad else 2
        graph.replay()
        assert (status.item(), written.item()) == ((3, 4) if bad else (0, 0))
    slots[1] = past
    torch._dynamo.reset()
    status.fill_(-99)
    written.fill_(-99)
    assert torch.equal(torch.compile(step, fullgraph=True, backend="aot_eager")(status, written), want)
    assert (status.item(), written.item()) == (0, 4)
    other = Exported(torch.full((1,), -99, dtype=torch.int32, device="cuda"))
    arrays = [Exported(tensor) for tensor in (q, cache, table, lens)]
    flashmla.decode(*arrays, **options_of(problem), out=Exported(torch.empty_like(want)), status=other)
    assert other.tensor.item() == 0
    with pytest.raises(ValueError, match=r"^status: got shape \[2\]; want shape \[codes\] = \[1\]"):
        flashmla.decode(q, cache, table, lens, **options_of(problem), status=torch.cat([status, status]))
    with pytest.raises(ValueError, match="^status: got a tensor on cpu in a call with tensors on cuda:0"):
        flashmla.decode(q, cache, table, lens, **options_of(problem), status=status.cpu())


FIRST_CALL = """
import torch, flashmla
q, cache = torch.randn(2, 1, 16, 576).bfloat16().cuda(), torch.randn(8, 64, 1, 576).bfloat16().cuda()
table = torch.arange(8, dtype=torch.int32).view(2, 4).cuda()
lens = torch.tensor([200, 0], dtype=torch.int32).cuda()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    out = flashmla.decode(q, cache, table, lens, softmax_scale=0.1)
graph.replay()
assert torch.equal(out, flashmla.decode(q, cache, table, lens, softmax_scale=0.1))
assert out[0].isfinite().all() and (out[0] != 0).any() and (out[1] == 0).all()
print("done")
"""


def test_first_call_of_a_process_inside_a_capture(torch):
    done = subprocess.run([sys.executable, "-c", FIRST_CALL], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0 and done.stdout == "done\n", done.stderr


def test_second_stream(torch):
    """The inputs are written late on a stream of its own: a call on another one would read what was there before."""
    problem = problems.make(7, LENS, **TUNED)
    q, cache, table, lens = on_gpu(problem)
    want = flashmla.decode(q, cache, table, lens, **options_of(problem))
    sums = torch.zeros(16, len(LENS), device="cuda")
    late_q, late_cache = torch.zeros_like(q), torch.zeros_like(cache)
    stream = torch.cuda.Stream()
    for warm in (False, True):  # once to load the kernels and to fill the allocator's pool of that stream
        late_q.zero_()
        late_cache.zero_()
        torch.cuda.synchronize()
        with torch.cuda.stream(stream):
            torch.cuda._sleep(100_000_000)
            late_q.copy_(q)
            late_cache.copy_(cache)
            out = flashmla.decode(late_q, late_cache, table, lens, **options_of(problem))
            merged, _ = flashmla.merge_states(out[:, 0], sums, out[:, 0], sums)
            assert not warm or not stream.query(), "everything was done before the last call came back"
        stream.synchronize()
        assert torch.equal(out, want) and torch.equal(merged, want[:, 0])


def test_many_calls_take_no_more_memory(torch):
    problem = problems.make(8, LENS, **TUNED)
    arrays = on_gpu(problem)
    out = torch.empty_like(arrays[0][..., :512])
    counts = []
    for _ in range(3):
        for _ in range(100):
            flashmla.decode(*arrays, **options_of(problem), out=out)
        torch.cuda.synchronize()
        counts.append((torch.cuda.memory_allocated(), torch.cuda.memory_reserved()))
    assert counts[0] == counts[1] == counts[2]


def test_other_device_current(torch):
    if torch.cuda.device_count() < 2:
        pytest.skip(f"needs two GPUs: {torch.cuda.device_count()} visible")
    problem = problems.make(9, LENS, **TUNED)
    want = flashmla.decode(*on_gpu(problem, "cuda:0"), **options_of(problem))
    arrays = on_gpu(problem, "cuda:1")
    with torch.cuda.device(0):
        for stream in (torch.cuda.default_stream(1), torch.cuda.Stream(1)):
            with torch.cuda.stream(stream), torch.cuda.device(0):
                out = flashmla.decode(*arrays, **options_of(problem))
                cache = torch.zeros_like(arrays[1])
                rows = torch.ones(1, 576, device="cuda:1", dtype=torch.bfloat16)
                slots = torch.ones(1, device="cuda:1", dtype=torch.int64)
                flashmla.append_kv(rows[:, :512], rows[:, 512:], cache, slots)
                assert torch.cuda.current_device() == 0
            torch.cuda.synchronize(1)
            assert out.device == torch.device("cuda:1") and torch.equal(out.cpu(), want.cpu())
            assert (cache[0, 1] == 1).all() and cache.count_nonzero() == 576
    with pytest.raises(ValueError, match="^kv_cache: got a tensor on cuda:0 in a call with tensors on cuda:1"):
        flashmla.decode(arrays[0], arrays[1].to("cuda:0"), *arrays[2:], **options_of(problem))


@pytest.mark.filterwarnings("default")  # inductor warns of what it could do with TF32
@pytest.mark.parametrize("backend", ["aot_eager", "cudagraphs", "inductor"])
def test_compiled(torch, backend):
    if backend == "inductor" and not (torch.utils._triton.has_triton() and (shutil.which("gcc") or shutil.which("cc"))):
        pytest.skip("needs triton and a C compiler: inductor compiles for the GPU with both")
    problem = problems.make(10, LENS, seq_q=2, **TUNED)
    q, cache, table, lens = on_gpu(problem)
    cache = cache.nan_to_num(0.0)
    slots = torch.tensor([1, 0, -1, 17], device="cuda")
    latent, rope = (torch.randn(4, width, device="cuda", dtype=torch.bfloat16) for width in (512, 64))

    def layer(q, cache, latent):
        flashmla.append_kv(latent + 1, rope, cache, slots)
        return flashmla.decode(q * 2, cache, table, lens, **options_of(problem), return_lse=True)

    torch._dynamo.reset()
    function = torch.compile(layer, fullgraph=True, backend=backend)
    for _ in range(3):
        got_cache, want_cache = cache.clone(), cache.clone()
        want = layer(q, want_cache, latent)
        for got, expected in zip(function(q, got_cache, latent), want, strict=True):
            assert torch.equal(got, expected)
        assert torch.equal(got_cache, want_cache)
        latent += 1


def test_opcheck(torch):
    problem = problems.make(11, [20, 7], **TUNED)
    q, cache, table, lens = on_gpu(problem)
    flashmla.decode(q, cache, table, lens, **options_of(problem))  # defines the ops
    options = (problem.scale, False, 512, None, "+inf", 0, False, None, None, 0)
    inputs = (q, None, cache.nan_to_num(0.0), table, lens, None)
    torch.library.opcheck(torch.ops.flashmla.decode.default, (*inputs, *options))
    states = [torch.randn(shape, device="cuda") for shape in ((3, 2, 8), (2, 3), (3, 2, 8), (2, 3))]
    torch.library.opcheck(torch.ops.flashmla.merge_states.default, (*states, "+inf", None, None, 0))


class Exported:
    """A GPU array of some other framework: it speaks DLPack and notes the streams that it is asked for."""

    def __init__(self, tensor):
        self.tensor, self.dtype, self.shape, self.streams = tensor, tensor.dtype, tensor.shape, []

    def __dlpack_device__(self):
        return self.tensor.__dlpack_device__()

    def __dlpack__(self, *, stream=None):
        self.streams.append(stream)
        return self.tensor.__dlpack__(stream=stream)


@pytest.mark.parametrize("given", [False, True])
def test_other_frameworks_take_a_stream(torch, given):
    problem = problems.make(12, LENS, **TUNED)
    tensors_ = on_gpu(problem)
    want, want_lse = flashmla.decode(*tensors_, **options_of(problem), return_lse=True)
    arrays = [Exported(tensor) for tensor in tensors_]
    out, lse = Exported(torch.full_like(want, torch.nan)), Exported(torch.full_like(want_lse, torch.nan))
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    place = {"stream": stream.cuda_stream} if given else {}
    got = flashmla.decode(*arrays, **options_of(problem), out=out, lse=lse, return_lse=True, **place)
    assert got == (out, lse)
    torch.cuda.synchronize()
    assert torch.equal(out.tensor, want) and torch.equal(lse.tensor, want_lse)
    assert all(array.streams == [stream.cuda_stream if given else 1] for array in (*arrays, out, lse))
    with pytest.raises(ValueError, match="^out: got None with arrays on cuda:0; want an array to write into"):
        flashmla.decode(*arrays, **options_of(problem))
    with pytest.raises(ValueError, match="^stream: got 'x'; want a cudaStream_t as an integer"):
        flashmla.decode(*arrays, **options_of(problem), out=out, stream="x")
    with pytest.raises(ValueError, match="^page_table: got numpy.ndarray on the CPU in a call with arrays on cuda:0"):
        flashmla.decode(*arrays[:2], problem.table, arrays[3], **options_of(problem), out=out)


def test_explain_decode(torch):
    choice = flashmla.explain_decode(batch=4, heads_q=16, seq_k=4096, device="cuda")
    assert choice.backend == "cuda" and choice.kernel and choice.reason and choice.workspace_bytes > 0
    assert flashmla.explain_decode(batch=4, heads_q=16, seq_k=4096, device="cuda:0") == choice
    assert flashmla.explain_decode(batch=4, heads_q=16, seq_k=4096, backend="cuda") == choice
    assert flashmla.explain_decode(batch=4, heads_q=16, seq_k=4096).backend == "cpu"
    with pytest.raises(NotImplementedError, match="^dtype: got fp32"):
        flashmla.explain_decode(batch=4, heads_q=16, seq_k=4096, dtype="fp32", device="cuda")
