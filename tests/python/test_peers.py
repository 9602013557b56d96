"""flashmla.peers without a GPU: sets, rows, the comparison on the CPU, the method on a simulated GPU, pictures."""

import contextlib
import csv
import json
import sys

import pytest
from conftest import need

try:
    torch = need("torch")
except pytest.skip.Exception as reason:
    pytest.skip(str(reason), allow_module_level=True)

from flashmla.peers import cli, gpu, gpu_ceilings, plots, report, run, sets  # noqa: E402
from flashmla.peers.adapters import ADAPTERS, LIBRARIES, Adapter, NotInstalled  # noqa: E402
from flashmla.peers.cases import SCALE, Case, equal  # noqa: E402
from flashmla.peers.problem import Problem, relative_error  # noqa: E402
from flashmla.peers.spread import Spread, spread_of  # noqa: E402

CPU = torch.device("cpu")
RAGGED = Case("ragged", 3, (5, 130, 64), seq_q=2, page_size=16)


# ---- cases and sets


def test_cost_of_a_case():
    case = Case("x", 16, (100, 50), seq_q=2)
    assert case.flops == 2 * 16 * (99 + 100 + 49 + 50) * (576 + 512)
    assert case.bytes == 2 * (150 * 576 + 2 * 2 * 16 * (576 + 512))
    assert case.pages == [2, 1] and case.kv_bytes == 3 * 64 * 576 * 2


def test_sets():
    for name in sets.SETS:
        names = [case.name for case in sets.cases_of([name])]
        assert names and len(names) == len(set(names)), name
    assert set(sets.ABOUT) == set(sets.SETS)
    tutorial = sets.cases_of(["tutorial"])
    assert [case.lengths[0] for case in tutorial] == [1024, 2048, 4096, 8192, 16384, 32768]
    assert all(case.batch == 128 and case.heads_q == 128 and case.pages_in_order for case in tutorial)
    assert tutorial[0].lengths == tuple(range(1024, 1024 + 256, 2))


def test_a_case_of_two_sets_takes_the_sharper_aim():
    aims = {case.name: case.target_us for case in sets.cases_of(["decode-targets"])}
    assert len(aims) == 38 and all(aims.values())
    assert (aims["b1 h16 512"], aims["b1 h128 4096"], aims["tutorial h128 1024"]) == (4.9, 9, 63)


def test_all_holds_every_other_set_for_the_gpu():
    everything = {case.name for case in sets.cases_of(["all"])}
    for name in ("tutorial", "low-batch", "ragged"):
        assert {case.name for case in sets.cases_of([name])} <= everything


# ---- inputs and the formula


def test_formula_agrees_with_plain_attention():
    problem = Problem(RAGGED, CPU, 1)
    expected = problem.expected(1)
    assert sorted(expected) == [0, 1, 2] and problem.copies == 2
    keys = problem.flat_caches()[1].double()
    for request, length in enumerate(RAGGED.lengths):
        scores = problem.q[request].double() @ keys[request, :length].T * SCALE  # [s_q, h_q, length]
        scores[0, :, length - 1] = float("-inf")
        want = torch.softmax(scores, -1) @ keys[request, :length, :512]
        assert torch.allclose(expected[request], want, rtol=1e-12, atol=1e-12)
        assert keys[request, length:].count_nonzero() == 0


def test_relative_error_sees_nan_and_small_differences():
    problem = Problem(RAGGED, CPU, 1)
    expected = problem.expected()
    out = torch.stack([expected[i] for i in range(3)])
    assert relative_error(out, expected) == 0
    out[2, 1, 2] *= 1.5
    assert 0.1 < relative_error(out, expected) < 0.5
    out[0, 0, 0, 0] = float("nan")
    assert relative_error(out, expected) != relative_error(out, expected)


# ---- adapters


@pytest.mark.parametrize(
    ("library", "module", "package"),
    [
        ("upstream_flash_mla", "flash_mla", "sgl-flash-mla"), ("flashinfer_fa3", "flashinfer", "flashinfer-python"),
        ("flashinfer_fa2", "flashinfer", "flashinfer-python"), ("fa3", "vllm", "vllm"), ("triton", "triton", "triton"),
    ],
)  # fmt: skip
def test_an_absent_library_names_the_command_that_installs_it(monkeypatch, library, module, package):
    monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.setitem(sys.modules, f"{module}.mla", None)
    monkeypatch.delenv("FLASHMLA_PEER_FA3", raising=False)
    adapter = next(adapter for adapter in ADAPTERS if adapter.library == library)
    with pytest.raises(NotInstalled, match=f"not installed: pip install {package}"):
        adapter.load()


def test_names_of_libraries():
    wanted = {"flashmla", "upstream_flash_mla", "fa3", "flashinfer_fa3", "flashinfer_fa2", "triton", "torch"}
    assert set(LIBRARIES) == wanted


@pytest.mark.parametrize("case", [RAGGED, Case("equal", 2, (40, 40)), Case("ragged", 2, (70, 3))], ids=lambda c: c.name)
@pytest.mark.parametrize(
    "adapter", [a for a in ADAPTERS if "cpu" in a.devices], ids=lambda a: f"{a.library}-{a.kernel}"
)
def test_adapters_of_the_cpu_are_right(adapter, case):
    problem = Problem(case, CPU, 1)
    call = adapter.prepare(problem)
    for index in (0, 1):
        assert relative_error(call(index), problem.expected(index)) < adapter.most_relative_error


# ---- the comparison on the CPU

ROW = {
    "library", "backend", "kernel", "library_version", "name", "batch", "seq_q", "heads_q", "heads_kv", "seq_k",
    "seq_k_mean", "page_size", "latent_dim", "rope_dim", "dtype", "causal", "right", "time_us", "time_us_p10",
    "time_us_p90", "repeats", "gbps", "tflops", "flops", "bytes", "buffer_copies", "relative_error",
}  # fmt: skip


def test_cpu_comparison(tmp_path, capsys):
    files = {flag: str(tmp_path / f"out.{flag}") for flag in ("json", "csv")}
    shape = ["--batch", "2", "--heads-q", "4", "--seq-k", "70:200", "--device", "cpu", "--seconds", "1"]
    assert (
        cli.main([*shape, "--commit", "abc", *(word for flag, path in files.items() for word in (f"--{flag}", path))])
        == 0
    )
    document = json.loads((tmp_path / "out.json").read_text())
    assert (document["library"], document["commit"]) == ("flashmla", "abc")
    assert [(row["library"], row["kernel"] in ("matmul", "sdpa")) for row in document["rows"]] == [
        ("flashmla", False), ("torch", True), ("torch", True)
    ]  # fmt: skip
    for row in document["rows"]:
        assert row.keys() >= ROW
        assert row["backend"] == "cpu" and row["right"] and row["relative_error"] < 0.01
        assert row["time_us_p10"] <= row["time_us"] <= row["time_us_p90"] and row["repeats"] >= 20
        assert row["gbps"] == pytest.approx(row["bytes"] / row["time_us"] * 1e-3)
        assert row["tflops"] == pytest.approx(row["flops"] / row["time_us"] * 1e-6)
    absent = {entry["library"]: entry["reason"] for entry in document["left_out"]}
    assert absent["fa3"] == "does not run on the CPU"
    with open(files["csv"], newline="") as file:
        assert [row["library"] for row in csv.DictReader(file)] == ["flashmla", "torch", "torch"]
    text = capsys.readouterr().out
    assert "b2 h4 70-200" in text and "left out: fa3 fa3_qv: does not run on the CPU" in text


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        (["--peers", "nobody"], "got 'nobody'; want 'all' or names of: flashmla, upstream_flash_mla"),
        (["--set", "mine"], "got 'mine'; want sets of: tutorial"),
        (["--set", "cpu", "--batch", "2"], "--batch: got it together with --set"),
        (["--seq-k", "9:3"], "--seq-k: got '9:3'; want N, N,N,.. or LO:HI"),
        (["--seq-k", "3", "--seq-q", "4"], "--seq-k: got 3 with --seq-q 4"),
        (["--batch", "0"], "got '0'; want a whole number of at least 1"),
        (["--json", "/no/such/folder/x"], "--json: got '/no/such/folder/x', whose folder does not exist"),
    ],
)
def test_bad_usage(capsys, flags, text):
    with pytest.raises(SystemExit) as done:
        cli.main(["--device", "cpu", *flags])
    assert done.value.code == 2
    assert text in capsys.readouterr().err


# ---- the method on a GPU, on a simulated one


class Device:
    """Stands for torch.cuda: work takes the time it says, a graph the sum of its work."""

    def __init__(self, monkeypatch):
        self.now_us, self.captured, self.replays = 0.0, None, []
        device = self

        class Event:
            def __init__(self, enable_timing):
                self.at_us = 0.0

            def record(self):
                self.at_us = device.now_us

            def synchronize(self):
                pass

            def elapsed_time(self, end):
                return (end.at_us - self.at_us) * 1e-3

        class Graph:
            def capture_begin(self, capture_error_mode):
                self.work = device.captured = []

            def capture_end(self):
                device.captured = None

            def replay(self):
                device.now_us += 10 + sum(us for _, us in self.work)  # launching a graph takes time, too
                device.replays.append(self.work)

        class Stream:
            def __init__(self, of):
                pass

            def synchronize(self):
                pass

        for name, value in (("Event", Event), ("CUDAGraph", Graph), ("Stream", Stream)):
            monkeypatch.setattr(torch.cuda, name, value)
        monkeypatch.setattr(torch.cuda, "stream", lambda _: contextlib.nullcontext())
        monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
        monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
        monkeypatch.setattr(gpu.Timer, "launch_between", lambda _: self.work("between", 2.0))
        monkeypatch.setattr(gpu, "REST_S", 0)
        monkeypatch.setattr(gpu, "HOT_LOAD_S", 0)
        monkeypatch.setattr(gpu, "ROTATE_BYTES", 1 << 20)
        monkeypatch.setattr(gpu_ceilings, "measure", lambda *_: {"read_gbps": 4600.0, "gemm_tflops": 700.0})
        monkeypatch.setattr(gpu_ceilings, "sm_clock_mhz", lambda *_: 1980.0)
        monkeypatch.setattr(run, "_Cpu", run._Gpu)

    def work(self, name, us):
        if self.captured is None:
            self.now_us += us
        else:
            self.captured.append((name, us))


class Simulated(Adapter):
    """Right unless told otherwise; takes `us`."""

    distribution, devices = "torch", ("cpu",)

    def __init__(self, device, library, us, fault=""):
        self.device, self.library, self.kernel, self.us, self.fault = device, library, "k", us, fault

    def unsupported(self, case):
        return "it will not" if self.fault == "unsupported" else None

    def prepare(self, problem):
        if self.fault == "prepare":
            raise ValueError("no plan")
        expected = problem.expected()
        out = torch.stack([expected[i] for i in range(problem.case.batch)]) * (2 if self.fault == "wrong" else 1)

        def call(index):
            if self.fault == "capture" and self.device.captured is not None:
                raise ValueError("not in a graph")
            self.device.work((self.library, index % problem.copies), self.us)
            return out

        return call


@pytest.fixture
def device(monkeypatch):
    return Device(monkeypatch)


def simulate(adapters, cases, **options):
    return run.run(cases, adapters, run.Options(CPU, seconds=0, **options), lambda *_: None)


def test_gpu_times_leave_out_the_kernel_between_the_calls(device):
    result = simulate(
        [Simulated(device, "flashmla", 5.0), Simulated(device, "fa3", 7.0)], [equal(1, 2, 70)], hot=True, eager=True
    )
    ours, peer = report.rows_of(result)
    for row, us in ((ours, 5.0), (peer, 7.0)):
        for column in ("time_us", "l2_warm_us", "chip_hot_us", "eager_us"):
            assert row[column] == pytest.approx(us), column
        assert us < row["chain_us"] < us + 0.2  # the launch of the graph stays in
        assert row["sm_clock_mhz"] == 1980.0 and row["peak_gbps"] == 4600.0
    assert ours["repeats"] >= gpu.LEAST_ROUNDS


def test_gpu_graphs_rotate_and_take_turns(device):
    case = equal(1, 2, 70)
    simulate([Simulated(device, "a", 5.0), Simulated(device, "b", 7.0)], [case])
    copies = gpu.rotation_of(case)
    assert copies * case.kv_bytes >= gpu.ROTATE_BYTES and copies > 2
    calls = [[name for name, _ in work if name != "between"] for work in device.replays]
    mixed = [
        (names[0][0], len(set(names)), len(names) < len(work)) for names, work in zip(calls, device.replays) if names
    ]
    rounds = mixed[6:]  # after each contender's three untimed replays
    in_turn = [("a", copies, True), ("b", copies, True), ("a", 1, True), ("b", 1, True), ("a", copies, False)]
    assert rounds[:6] == [*in_turn, ("b", copies, False)]
    assert rounds[:6] == rounds[6:12]


@pytest.mark.parametrize(
    ("fault", "status", "text"),
    [
        ("prepare", "failed", "ValueError: no plan"), ("capture", "failed", "ValueError: not in a graph"),
        ("wrong", "wrong", "relative error 1 to the double-precision formula"),
        ("unsupported", "unsupported", "it will not"),
    ],
)  # fmt: skip
def test_one_library_that_fails_stops_no_other(device, tmp_path, fault, status, text):
    with open(tmp_path / "log", "w") as log:
        result = simulate(
            [Simulated(device, "x", 3.0, fault), Simulated(device, "flashmla", 5.0)], [equal(1, 2, 70)], log=log
        )
    assert [row["library"] for row in report.rows_of(result)] == ["flashmla"]
    (entry,) = report.left_out_of(result)
    assert (entry["library"], entry["status"]) == ("x", status) and text in entry["reason"]
    assert ("Traceback" in (tmp_path / "log").read_text()) == (status == "failed")


def test_spread():
    assert spread_of([3, 1, 2, 5, 4]) == Spread(3, 1, 5, 5)


# ---- pictures and the tutorial's file


def document():
    """Two libraries over the sets, the peer 1.5 times as slow."""
    result = run.Run(CPU, {"read_gbps": 4600.0, "gemm_tflops": 700.0}, [], {})
    for case in sets.cases_of(["all"]):
        for library, factor in (("flashmla", 1.0), ("fa3", 1.5)):
            us = factor * (5 + case.bytes / 4e6)
            spread = Spread(us, us * 0.99, us * 1.02, 9)
            result.entries.append(run.Entry(case, library, "k", "ok", columns={"time": spread}))
    return report.document_of(result, {"device": "simulated"})


@pytest.mark.parametrize("ending", ["png", "svg"])
def test_pictures(tmp_path, ending):
    need("matplotlib")
    made = plots.draw(document(), tmp_path / "new", ending)
    assert [path.name for path in made] == [
        f"{name}.{ending}" for name in ("bandwidth", "heads", "latency", "roofline", "speed-up")
    ]
    start = {"png": b"\x89PNG", "svg": b"<?xml"}[ending]
    assert all(path.read_bytes()[:5].startswith(start) and path.stat().st_size > 5000 for path in made)


def test_plot_command(tmp_path, capsys):
    need("matplotlib")
    (tmp_path / "out.json").write_text(json.dumps(document()))
    assert cli.main(["plot", str(tmp_path / "out.json"), "--out", str(tmp_path)]) == 0
    assert (tmp_path / "bandwidth.png").exists()
    with pytest.raises(SystemExit):
        cli.main(["plot", __file__])
    assert "which is no results file of flashmla bench" in capsys.readouterr().err


def test_tutorial_file():
    lines = report.tutorial_csv_of(document()["rows"]).splitlines()
    assert lines[0] == "name,batch,seqlen,head,bw" and len(lines) == 1 + 2 * 2 * 6
    assert lines[1].startswith("flashmla,128,1151,128,")
