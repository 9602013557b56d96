"""What the driver wants of a library."""

from __future__ import annotations

import importlib
import importlib.metadata
from collections.abc import Callable
from typing import Any

import torch

from ..cases import Case
from ..problem import Problem


class NotInstalled(Exception):
    """The library is not here; the text says which command installs it."""


def import_peer(module: str, pip_name: str) -> Any:
    """The module, or NotInstalled. A module that is there and cannot be imported says why."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is not None and module.startswith(error.name):
            raise NotInstalled(f"not installed: pip install {pip_name}") from None
        raise NotInstalled(f"{module} cannot be imported: {error}; pip install {pip_name}") from error
    except (ImportError, OSError, RuntimeError) as error:
        raise NotInstalled(f"{module} cannot be imported: {error}") from error


class Adapter:
    """A library's decode. Subclasses fill these in."""

    library: str  # name in results
    kernel: str  # which of the library's kernels or forms
    distribution: str  # name of the installed package, for its version
    devices: tuple[str, ...] = ("cuda",)
    most_relative_error = 0.01  # of bf16 inputs, see problem.relative_error

    def load(self) -> None:
        """Imports the library. Raises NotInstalled."""

    def unsupported(self, case: Case) -> str | None:
        """Why the library does not compute the case; None where it does."""
        return None

    def prepare(self, problem: Problem) -> Callable[[int], torch.Tensor]:
        """Plans, outside of what is timed. The result decodes with `problem.cache(index)` and returns its output,
        `[b, s_q, h_q, 512]`; it enqueues on the current stream, waits for nothing and can be captured into a graph.
        """
        raise NotImplementedError

    def version(self) -> str:
        try:
            return importlib.metadata.version(self.distribution)
        except importlib.metadata.PackageNotFoundError:
            return "unknown"
