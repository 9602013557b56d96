"""FlashMLA's dense decode for Hopper: the package `flash_mla`, of upstream before it left Hopper or of the fork in the
wheel `sgl-flash-mla`, whose calls take `use_legacy=True` for these kernels."""

from __future__ import annotations

import importlib.metadata
import inspect

from ..cases import LATENT, SCALE
from .base import Adapter, import_peer


class UpstreamFlashMLA(Adapter):
    library, kernel, distribution = "upstream_flash_mla", "dense", "sgl-flash-mla"

    def load(self):
        self._module = import_peer("flash_mla", "sgl-flash-mla")
        takes = inspect.signature(self._module.flash_mla_with_kvcache).parameters
        self._fork = {"use_legacy": True} if "use_legacy" in takes else {}

    def unsupported(self, case):
        return None if case.page_size == 64 else f"page size {case.page_size}: it takes 64"

    def prepare(self, problem):
        plan = self._plan(problem)

        def call(index):
            return self._module.flash_mla_with_kvcache(
                problem.q, problem.cache(index), problem.page_table, problem.seq_lens, LATENT, *plan,
                softmax_scale=SCALE, causal=True, **self._fork,
            )[0]  # fmt: skip

        call(0)  # the newer interface plans in the first call
        return call

    def _plan(self, problem):
        if inspect.signature(self._module.get_mla_metadata).parameters.keys() & {"cache_seqlens"} and not self._fork:
            rows = problem.case.seq_q * problem.case.heads_q
            return self._module.get_mla_metadata(problem.seq_lens, rows, 1)
        return self._module.get_mla_metadata()

    def version(self):
        for name in ("sgl-flash-mla", "flash-mla", "flash_mla"):
            try:
                return f"{name} {importlib.metadata.version(name)}"
            except importlib.metadata.PackageNotFoundError:
                continue
        return str(getattr(self._module, "__version__", "unknown"))
