"""One adapter for each library and form of it; see `base.Adapter`."""

from .base import Adapter, NotInstalled
from .flash_attention3 import FlashAttention3
from .flash_mla import UpstreamFlashMLA
from .flashinfer_mla import FlashInfer
from .ours import Ours
from .torch_forms import TorchMatmul, TorchSdpa
from .triton_mla import TritonMLA

__all__ = ["ADAPTERS", "LIBRARIES", "Adapter", "NotInstalled"]

ADAPTERS: tuple[Adapter, ...] = (
    Ours(), UpstreamFlashMLA(), FlashAttention3(), FlashInfer("fa3"), FlashInfer("fa2"), TritonMLA(), TorchMatmul(),
    TorchSdpa(),
)  # fmt: skip
LIBRARIES = tuple(dict.fromkeys(adapter.library for adapter in ADAPTERS))
