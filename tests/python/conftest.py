"""What all Python tests share: switches, the places a call can run, and skips by name."""

import importlib
import os

import pytest

import flashmla

FULL = os.environ.get("FLASHMLA_TEST_FULL") == "1"
HAS_CUDA = any(backend.device == "cuda" for backend in flashmla.backends())  # this build; not whether a GPU is there
LITE = os.environ.get("FLASHMLA_TEST_LITE") == "1"


def need(package):
    """The package, or a skip that names it. FLASHMLA_TEST_LITE=1 counts torch and JAX as missing."""
    if LITE and package in ("torch", "jax"):
        pytest.skip(f"needs {package}: left out by FLASHMLA_TEST_LITE=1")
    try:
        return importlib.import_module(package)
    except ImportError:
        pytest.skip(f"needs {package}: not installed")


def places():
    """Every back end, and every instruction set of "cpu" on this machine, as keyword arguments of a call."""
    rows = [pytest.param({"backend": "reference"}, id="reference")]
    if "cpu" in [backend.name for backend in flashmla.backends()]:
        rows += [pytest.param({"backend": "cpu", "isa": isa}, id=f"cpu-{isa}") for isa in flashmla.cpu_info().isas]
    return rows


@pytest.fixture(params=places())
def place(request):
    return request.param


@pytest.fixture
def torch():
    return need("torch")


@pytest.fixture
def jax():
    return need("jax")
