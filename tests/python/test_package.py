"""The package itself: what import does, versions, types, the console script, what calls report about the machine."""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
from importlib import metadata, resources
from pathlib import Path

import pytest

import flashmla

HEADER = Path(__file__).parents[2] / "include" / "flashmla" / "version.h"


def test_import_loads_no_framework():
    code = "import sys, flashmla; print(sorted({'torch', 'numpy', 'jax', 'cupy'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100)
    assert done.stdout == "[]\n", done.stderr


def test_one_version():
    in_header = re.search(r'FLASHMLA_VERSION_STRING "(.*)"', HEADER.read_text())[1]
    assert flashmla.__version__ == in_header == metadata.version("flashmla")


def test_wheel_needs_nothing():
    needs = metadata.requires("flashmla") or []
    assert [need for need in needs if "extra ==" not in need] == []


def test_types_are_shipped():
    package = resources.files("flashmla")
    assert package.joinpath("py.typed").is_file() and package.joinpath("_native.pyi").is_file()


def test_public_names_have_docstrings():
    for name in flashmla.__all__:
        if name != "__version__":
            assert getattr(flashmla, name).__doc__, name
    for word in ("Args:", "Returns:", "Raises:", "[b, s_q, h_q, d_qk]", "int32", "natural logarithm"):
        assert word in flashmla.decode.__doc__


def test_unknown_attribute():
    with pytest.raises(AttributeError, match="module 'flashmla' has no attribute 'flashmla'"):
        flashmla.flashmla  # noqa: B018


def test_console_script_is_the_program():
    scripts = Path(sysconfig.get_path("scripts")) / "flashmla"
    program = str(scripts) if scripts.exists() else shutil.which("flashmla")
    if program is None:
        pytest.skip("needs the program: this build was made with FLASHMLA_BUILD_CLI=OFF")
    assert Path(program).read_bytes()[:4] == b"\x7fELF"
    done = subprocess.run([program, "version"], capture_output=True, text=True, timeout=100)
    assert done.returncode == 0 and flashmla.__version__ in done.stdout
    done = subprocess.run([program, "info"], capture_output=True, text=True, timeout=100)
    assert done.returncode == 0 and "reference" in done.stdout


def test_backends():
    rows = flashmla.backends()
    names = [row.name for row in rows]
    assert {"reference", "cpu"} <= set(names) and all(row.device in ("cpu", "cuda") for row in rows)
    assert [row.priority for row in rows] == sorted((row.priority for row in rows), reverse=True)


def test_cpu_info(monkeypatch):
    info = flashmla.cpu_info()
    assert info.model and 1 <= info.threads <= os.cpu_count() and info.isas[-1] == "scalar"
    assert info.l2_bytes >= 0 and info.l3_bytes >= 0
    monkeypatch.setenv("FLASHMLA_NUM_THREADS", "1")
    assert flashmla.cpu_info().threads == 1


def test_explain_decode():
    shape = {"batch": 8, "heads_q": 128, "seq_k": 4096}
    for isa in flashmla.cpu_info().isas:
        choice = flashmla.explain_decode(**shape, backend="cpu", isa=isa)
        assert choice.backend == "cpu" and isa in choice.kernel and choice.reason
    choice = flashmla.explain_decode(**shape, backend="reference", dtype="fp32", causal=True, seq_q=2)
    assert choice.backend == "reference" and choice.workspace_bytes >= 0
    small = flashmla.explain_decode(**shape, splits=1).workspace_bytes
    assert small <= flashmla.explain_decode(**shape, splits=64).workspace_bytes
    assert flashmla.explain_decode(batch=0, heads_q=16, seq_k=0).backend == flashmla.backends()[0].name


def test_mypy_accepts_typed_use(tmp_path):
    pytest.importorskip("mypy", reason="needs mypy: not installed")
    good = tmp_path / "good.py"
    good.write_text(
        "import flashmla\n"
        "choice: flashmla.KernelChoice = flashmla.explain_decode(batch=1, heads_q=1, seq_k=1)\n"
        "names: list[str] = [b.name for b in flashmla.backends()]\n"
        "isas: tuple[str, ...] = flashmla.cpu_info().isas\n"
    )
    bad = tmp_path / "bad.py"
    bad.write_text("import flashmla\nflashmla.decode(1, 2, 3, 4, softmax_scale='x')\n")
    command = [sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent", str(good), str(bad)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    errors = [line for line in done.stdout.splitlines() if ": error:" in line]
    assert len(errors) == 1 and "bad.py" in errors[0] and 'incompatible type "str"' in errors[0], done.stdout
