"""vLLM's CPU platform, with flashmla where it is chosen.

The stock platform gives MLA models its own back end whatever was asked for, forces pages of 16 tokens, and turns chunked
prefill and prefix caching off. None of that holds for ours.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vllm.logger import init_logger
from vllm.platforms import cpu_platform_plugin
from vllm.utils.import_utils import resolve_obj_by_qualname
from vllm.v1.attention.backends.registry import AttentionBackendEnum

from . import LOGGER_NAME, backend_name

if TYPE_CHECKING:
    from vllm.platforms.cpu import CpuPlatform as StockPlatform
else:
    # The plain one, or that of AMD's library where it is installed.
    StockPlatform = resolve_obj_by_qualname(cpu_platform_plugin())

_logger = init_logger(LOGGER_NAME)
_STOCK_PAGE = 16
_PREFERRED_PAGE = 64


def _is_ours(vllm_config: Any) -> bool:
    return bool(vllm_config.attention_config.backend == AttentionBackendEnum[backend_name()])


class FlashMLACpuPlatform(StockPlatform):
    @classmethod
    def get_attn_backend_cls(
        cls, selected_backend: Any, attn_selector_config: Any, num_heads: int | None = None
    ) -> str:
        if not attn_selector_config.use_mla or selected_backend != AttentionBackendEnum[backend_name()]:
            return str(super().get_attn_backend_cls(selected_backend, attn_selector_config, num_heads))
        refusals = selected_backend.get_class().validate_configuration(
            device_capability=None, **attn_selector_config._asdict()
        )
        if refusals:
            raise ValueError(f"--attention-backend {selected_backend.name} (flashmla): {'; '.join(refusals)}")
        return str(selected_backend.get_path())

    @classmethod
    def get_mla_prefill_backend_cls(cls, mla_selector_config: Any) -> Any:
        from vllm.config import get_current_vllm_config

        if not _is_ours(get_current_vllm_config()):
            return super().get_mla_prefill_backend_cls(mla_selector_config)
        from .prefill import FlashMLAPrefillBackend

        refusals = FlashMLAPrefillBackend.validate_configuration(None, mla_selector_config)
        if refusals:
            raise ValueError(f"prefill with flashmla: {'; '.join(refusals)}")
        return FlashMLAPrefillBackend

    @classmethod
    def check_and_update_config(cls, vllm_config: Any) -> None:
        model, cache, scheduler = vllm_config.model_config, vllm_config.cache_config, vllm_config.scheduler_config
        ours = model is not None and model.use_mla and _is_ours(vllm_config)
        page = cache.block_size if cache.user_specified_block_size else _PREFERRED_PAGE
        kept = scheduler.enable_chunked_prefill, scheduler.max_num_batched_tokens, cache.enable_prefix_caching
        if ours:
            cache.block_size = _STOCK_PAGE  # or it would be overridden with a warning, and come back below
        super().check_and_update_config(vllm_config)
        if ours:
            cache.block_size = page
            scheduler.enable_chunked_prefill, scheduler.max_num_batched_tokens, cache.enable_prefix_caching = kept
