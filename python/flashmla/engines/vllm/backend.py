"""The attention back end that vLLM sees: what it supports, what it keeps of a step, and its calls of flashmla.

vLLM's layer multiplies the queries with W_UK beforehand and the output with W_UV afterwards; between them lies `forward_mqa`,
which is `flashmla.decode`. The cache is written by `flashmla.append_kv`. Long prompts run through the engine's own prefill on
GPUs, and through `flashmla.prefill` on CPUs (`prefill.py`). Written against vLLM 0.22, 0.32 and 0.33: what differs among
them is said where it matters.
"""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

import torch
import vllm.envs as envs
from vllm.config import get_current_vllm_config
from vllm.logger import init_logger
from vllm.model_executor.layers.attention.mla_attention import (
    MLACommonBackend,
    MLACommonDecodeMetadata,
    MLACommonImpl,
    MLACommonMetadata,
    MLACommonMetadataBuilder,
    QueryLenSupport,
)
from vllm.platforms import current_platform
from vllm.v1.attention.backend import AttentionCGSupport, AttentionType, MultipleOf

import flashmla

from . import LOGGER_NAME

_logger = init_logger(LOGGER_NAME)
_DTYPES = {torch.bfloat16: "bf16", torch.float16: "fp16", torch.float32: "fp32"}
# vLLM's names of cache dtypes that name one, as opposed to "auto".
_CACHE_DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16}
_PREFERRED_PAGE = 64  # what the kernels are tuned for; every page size runs
_LEAST_CAPABILITY = 8  # of CUDA devices: sm_80


def _has_device(kind: str) -> bool:
    return any(backend.device == kind for backend in flashmla.backends())


@dataclasses.dataclass
class FlashMLADecodeMetadata(MLACommonDecodeMetadata):
    """A step's decode requests. Nothing is planned here: the kernels read lengths on the device, so that a captured graph
    replays with others."""

    query_start_loc: torch.Tensor | None = None
    """int32 `[num_decodes + 1]` on the device."""
    uniform_query_len: int = 0
    """Query tokens of every request; 0 where they differ."""


@dataclasses.dataclass
class FlashMLAMetadata(MLACommonMetadata[FlashMLADecodeMetadata]):
    pass


def _uniform_query_len(query_start_loc: torch.Tensor, num_tokens: int) -> int:
    """Query tokens of each request where all have equally many, else 0. Requests at the end that pad a graph have none, and
    rows of their own in `num_tokens`."""
    lengths = query_start_loc.diff()
    length, rest = divmod(num_tokens, max(len(lengths), 1))
    if rest or length == 0:
        return 0
    full = int((lengths == length).sum())
    return length if bool((lengths[:full] == length).all()) and not bool(lengths[full:].any()) else 0


class FlashMLAMetadataBuilder(MLACommonMetadataBuilder[FlashMLAMetadata]):
    _cudagraph_support: ClassVar[AttentionCGSupport] = AttentionCGSupport.UNIFORM_BATCH  # all that vLLM captures of MLA
    query_len_support: ClassVar[QueryLenSupport] = QueryLenSupport.VARLEN
    # Prompts go to prefill; drafts (speculative decoding raises this by their count) come here.
    reorder_batch_threshold: int = 1

    def __init__(self, kv_cache_spec: Any, layer_names: list[str], vllm_config: Any, device: torch.device) -> None:
        # Several query tokens over a cache that ranks share need a mask that knows the other ranks: vLLM then sends one.
        super().__init__(
            kv_cache_spec, layer_names, vllm_config, device, FlashMLAMetadata, supports_dcp_with_varlen=False
        )

    @classmethod
    def get_cudagraph_support(cls, vllm_config: Any, kv_cache_spec: Any) -> AttentionCGSupport:
        """One token a request where ranks share tokens and drafts are on: vLLM then sends drafts to prefill, and must not
        capture a decode of several tokens."""
        shared = vllm_config.parallel_config.decode_context_parallel_size > 1
        if shared and vllm_config.speculative_config is not None:
            return AttentionCGSupport.UNIFORM_SINGLE_TOKEN_DECODE
        return cls._cudagraph_support

    def _build_decode(self, **arguments: Any) -> FlashMLADecodeMetadata:
        """vLLM passes every argument by its name. Which ones there are depends on its version; the base class sorts them."""
        common = super()._build_decode(**arguments)
        return FlashMLADecodeMetadata(
            block_table=common.block_table,
            seq_lens=common.seq_lens,
            dcp_tot_seq_lens=common.dcp_tot_seq_lens,
            query_start_loc=arguments["query_start_loc_device"],
            uniform_query_len=_uniform_query_len(arguments["query_start_loc_cpu"], arguments["num_decode_tokens"]),
        )


class FlashMLABackend(MLACommonBackend):
    """`--attention-backend CUSTOM`. What it refuses, vLLM reports with the reason before a model is loaded."""

    supported_dtypes: ClassVar[list[torch.dtype]] = [torch.float16, torch.bfloat16, torch.float32]
    supported_kv_cache_dtypes: ClassVar[list[Any]] = ["auto", "float16", "bfloat16"]

    @staticmethod
    def get_name() -> str:
        return "CUSTOM"

    @staticmethod
    def get_impl_cls() -> type[FlashMLAImpl]:
        return FlashMLAImpl

    @staticmethod
    def get_builder_cls() -> type[FlashMLAMetadataBuilder]:
        return FlashMLAMetadataBuilder

    @staticmethod
    def get_supported_kernel_block_sizes(kv_cache_spec: Any = None) -> list[Any]:
        return [MultipleOf(1)]

    @classmethod
    def get_preferred_block_size(cls, default_block_size: int) -> int:
        return _PREFERRED_PAGE

    @staticmethod
    def get_kv_cache_stride_order(include_num_layers_dimension: bool = False) -> tuple[int, ...]:
        """vLLM 0.22: pages of all layers side by side, where a connector wants that; the kernels take any page stride. Later
        versions ask for layouts that a back end cannot take, of which there are none."""
        return (1, 0, 2, 3) if include_num_layers_dimension else (0, 1, 2)

    @classmethod
    def supports_batch_invariance(cls) -> bool:
        return True

    @classmethod
    def supports_device_cpu_query_lens_mismatch(cls) -> bool:
        return False  # whether a batch is uniform is read off the CPU's query lengths

    @classmethod
    def supports_compute_capability(cls, capability: Any) -> bool:
        return capability is None or capability.major >= _LEAST_CAPABILITY

    @classmethod
    def supports_combination(
        cls,
        head_size: int,
        dtype: torch.dtype,
        kv_cache_dtype: Any,
        block_size: int | None,
        use_mla: bool,
        *others: Any,
        **named: Any,
    ) -> str | None:
        """None, or why not. What stands between `use_mla` and `device_capability`, the last, depends on vLLM's version."""
        device_capability = named["device_capability"] if named else others[-1]
        if _CACHE_DTYPES.get(kv_cache_dtype, dtype) != dtype:
            return f"kv_cache_dtype {kv_cache_dtype} with a model of {dtype}: flashmla reads a cache of the model's dtype"
        if device_capability is None:
            return None
        if dtype == torch.float32:
            return f"{dtype} on a GPU: flashmla's GPU kernels take bf16 and fp16"
        if not _has_device("cuda"):
            return "this build of flashmla has no GPU kernels: install it where a CUDA toolkit of 12.8 or newer is"
        return None


class FlashMLAOverride(FlashMLABackend):
    """In the place of vLLM's FLASHMLA; see FLASHMLA_VLLM_BACKEND_NAME."""

    @staticmethod
    def get_name() -> str:
        return "FLASHMLA"


class FlashMLAImpl(MLACommonImpl[FlashMLAMetadata]):
    can_return_lse_for_decode: bool = True
    supports_dcp: bool = True

    def __init__(
        self,
        num_heads: int,
        head_size: int,
        scale: float,
        num_kv_heads: int,
        alibi_slopes: list[float] | None,
        sliding_window: int | None,
        kv_cache_dtype: str,
        logits_soft_cap: float | None,
        attn_type: str,
        kv_sharing_target_layer_name: str | None,
        **mla_args: Any,
    ) -> None:
        for name, value in (
            ("alibi_slopes", alibi_slopes), ("sliding_window", sliding_window), ("logits_soft_cap", logits_soft_cap)
        ):  # fmt: skip
            if value:
                raise NotImplementedError(f"{name}: got {value}; flashmla computes plain softmax attention, want None")
        if attn_type != AttentionType.DECODER:
            raise NotImplementedError(f"attn_type: got {attn_type}; flashmla takes '{AttentionType.DECODER.value}'")
        super().__init__(
            num_heads, head_size, scale, num_kv_heads, alibi_slopes, sliding_window, kv_cache_dtype, logits_soft_cap,
            attn_type, kv_sharing_target_layer_name, **mla_args,
        )  # fmt: skip
        self.supports_quant_query_input = False  # queries come as they are, also where the cache is quantised one day
        self._batch_invariant = bool(envs.VLLM_BATCH_INVARIANT)
        # On a CPU, the worker's share of the processors, which vLLM gives to torch. On a GPU it is not read.
        self._threads = torch.get_num_threads()
        self._log_kernel()

    def _log_kernel(self) -> None:
        """Says once which kernel decodes, and finds out at start whether these sizes have one."""
        config = get_current_vllm_config()
        cache = config.cache_config
        named = getattr(cache, "user_specified_block_size", False)  # else the engine has not yet asked us for one
        choice = flashmla.explain_decode(
            batch=2,  # one request may have a kernel of its own
            heads_q=self.num_heads * config.parallel_config.decode_context_parallel_size,
            seq_k=config.model_config.max_model_len,
            latent_dim=self.kv_lora_rank,
            rope_dim=self.head_size - self.kv_lora_rank,
            page_size=cache.block_size if named else _PREFERRED_PAGE,
            dtype=_DTYPES[config.model_config.dtype],
            causal=True,
            batch_invariant=self._batch_invariant,
            device=f"cuda:{torch.cuda.current_device()}" if current_platform.is_cuda() else "cpu",
        )
        _logger.info_once("Using flashmla MLA back end: kernel %s (%s)", choice.kernel, choice.reason)

    def do_kv_cache_update(
        self,
        kv_c_normed: torch.Tensor,
        k_pe: torch.Tensor,
        kv_cache: torch.Tensor,
        slot_mapping: torch.Tensor,
        kv_cache_dtype: str,
        k_scale: torch.Tensor,
        skip_scale: bool = False,
    ) -> None:
        """Writes the step's tokens. Since vLLM 0.33 there is `skip_scale`, which speaks of quantised caches alone."""
        if kv_cache.numel() > 0:
            flashmla.append_kv(
                kv_c_normed, k_pe.squeeze(1), kv_cache, slot_mapping.flatten(), threads=self._threads
            )  # fmt: skip

    def forward_mqa(
        self,
        q: torch.Tensor | tuple[torch.Tensor, torch.Tensor],
        kv_c_and_k_pe_cache: torch.Tensor,
        attn_metadata: FlashMLAMetadata,
        layer: Any,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Decode attention of one layer.

        Args:
            q: `[tokens, heads, 512 + 64]`, or its latent and RoPE parts; strided as they are.
            kv_c_and_k_pe_cache: `[pages, page, 512 + 64]`, any page stride.

        Returns:
            `[tokens, heads, 512]` in q's dtype, and fp32 `[tokens, heads]` log-sum-exps (natural logarithm, -inf for a row
            that sees no key) where the engine merges ranks.
        """
        if not getattr(attn_metadata, "causal", True):  # vLLM 0.22 knows no other batches
            raise NotImplementedError("flashmla's vLLM back end: got a batch without causal mask; want a causal one")
        step = attn_metadata.decode
        assert step is not None
        latent, rope = q if isinstance(q, tuple) else (q, None)
        tokens, heads, _ = latent.shape
        length = step.uniform_query_len
        if self._batch_invariant and length != 1:
            length = 0  # a request's bits must not depend on whether its neighbours have as many tokens
        if length:
            latent = latent.unflatten(0, (-1, length))
            rope = None if rope is None else rope.unflatten(0, (-1, length))
        out, lse = flashmla.decode(
            latent,
            kv_c_and_k_pe_cache.unsqueeze(-2),
            step.block_table,
            step.seq_lens,
            softmax_scale=self.scale,
            causal=True,
            latent_dim=self.kv_lora_rank,
            q_rope=rope,
            cu_seqlens_q=None if length else step.query_start_loc,
            return_lse=True,
            empty_lse="-inf",
            batch_invariant=self._batch_invariant,
            threads=self._threads,
        )
        if not self.need_to_return_lse_for_decode:
            return out.view(tokens, heads, -1), None
        # [requests, heads, tokens of one], or [heads, tokens].
        by_token = lse.transpose(1, 2).reshape(tokens, heads) if length else lse.transpose(0, 1)
        return out.view(tokens, heads, -1), by_token
