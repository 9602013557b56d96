"""The attention back end that SGLang sees: what it keeps of a step, and its calls of flashmla.

SGLang's models multiply the queries with W_UK beforehand and the output with W_UV afterwards; between them lies
`forward_decode`, which is `flashmla.decode` over SGLang's own latent pool. Draft tokens that are verified take the same
way, several a request. Prompts run through SGLang's Triton back end, which needs no further package.

Not run inside the engine yet: contract tests hold it against the sources of SGLang 0.5.15.post1, and the decode path
runs on CPU tensors with stand-ins for the engine's objects.
"""

from __future__ import annotations

import dataclasses
import logging
from typing import TYPE_CHECKING, Any

import torch
from sglang.srt.layers.attention.attention_registry import ATTENTION_BACKENDS
from sglang.srt.layers.attention.base_attn_backend import AttentionBackend
from sglang.srt.layers.radix_attention import AttentionType

import flashmla

from . import NAME

if TYPE_CHECKING:
    from sglang.srt.configs.model_config import ModelConfig
    from sglang.srt.layers.radix_attention import RadixAttention
    from sglang.srt.mem_cache.memory_pool import MLATokenToKVPool
    from sglang.srt.model_executor.forward_batch_info import ForwardBatch
    from sglang.srt.model_executor.model_runner import ModelRunner
    from sglang.srt.server_args import ServerArgs

_logger = logging.getLogger(__name__)
_DTYPES = (torch.bfloat16, torch.float16)
_PREFILL = "triton"
_FAST_PAGE_MULTIPLE = 8  # of the Hopper kernels; other page sizes run through general ones
# Length of the requests that fill up a captured graph. The kernels take 0 as well, but SGLang also uses this length for
# the prompts of its warm-up runs, which the Triton back end computes.
_PADDING_LENGTH = 1


@dataclasses.dataclass
class StepMetadata:
    """What the layers of a step share."""

    page_table: torch.Tensor
    """int32 `[requests, pages]`; entries past a request's length are whatever was there."""
    seq_lens: torch.Tensor
    """int32 `[requests]`, with the step's own tokens."""
    query_len: int
    """Query tokens of each request."""


def _refuse(name: str, got: Any, reason: str) -> None:
    raise NotImplementedError(f"{name}: got {got}; --attention-backend {NAME} {reason}")


class FlashMLAAttentionBackend(AttentionBackend):
    """`--attention-backend flashmla_native`, or `--decode-attention-backend` beside another one for prefill.

    Raises:
        ValueError: the model is not an MLA model.
        NotImplementedError: its dtype, its cache or an option of the server is not served, by name.
    """

    needs_cpu_seq_lens: bool = False  # page tables and lengths are made on the device

    def __init__(self, runner: ModelRunner) -> None:
        super().__init__()
        _check_runner(runner)
        options: ServerArgs = runner.server_args
        model: ModelConfig = runner.model_config
        self.token_to_kv_pool = runner.token_to_kv_pool
        self.req_to_token_pool = runner.req_to_token_pool
        self.max_context_len = model.context_len
        self.page_size = runner.page_size
        self.num_draft_tokens = options.speculative_num_draft_tokens
        self.forward_metadata: StepMetadata | None = None
        self._latent_dim = model.kv_lora_rank
        self._width = model.kv_lora_rank + model.qk_rope_head_dim
        # A page's tokens lie side by side: the first one's slot tells the page.
        self._first_slots = self.req_to_token_pool.req_to_token[:, :: self.page_size]
        self._graph: StepMetadata | None = None
        self._runner = runner
        self._prefill_backend: AttentionBackend | None = None
        if self.page_size % _FAST_PAGE_MULTIPLE:
            _logger.warning(
                "%s: got --page-size %d, which general kernels serve; want a multiple of %d, best 64",
                NAME, self.page_size, _FAST_PAGE_MULTIPLE,
            )  # fmt: skip

    @property
    def prefill_backend(self) -> AttentionBackend:
        """SGLang's Triton back end, made when the first prompt comes: none does where another one has the prefill."""
        if self._prefill_backend is None:
            self._prefill_backend = ATTENTION_BACKENDS[_PREFILL](self._runner)
        return self._prefill_backend

    def _is_decode(self, forward_batch: ForwardBatch) -> bool:
        mode = forward_batch.forward_mode
        if mode.is_draft_extend_v2():
            _refuse(
                "forward_mode", mode.name, "runs no draft model; give it a back end of its own, "
                "--speculative-draft-attention-backend triton",
            )  # fmt: skip
        return mode.is_decode_or_idle() or mode.is_target_verify()

    def _empty_metadata(self, requests: int) -> StepMetadata:
        slots = self._first_slots
        return StepMetadata(
            slots.new_empty((requests, slots.shape[1]), dtype=torch.int32),
            slots.new_empty((requests,), dtype=torch.int32),
            query_len=1,
        )

    def _fill(self, forward_batch: ForwardBatch, into: StepMetadata) -> None:
        """Writes a batch's page table and lengths, on the device and without asking it for anything."""
        requests = forward_batch.batch_size
        table, lengths = into.page_table[:requests], into.seq_lens[:requests]
        torch.index_select(self._first_slots, 0, forward_batch.req_pool_indices[:requests], out=table)
        table.floor_divide_(self.page_size)
        lengths.copy_(forward_batch.seq_lens[:requests])
        query_len = 1
        if forward_batch.forward_mode.is_target_verify():
            # SGLang counts the drafts only once they are accepted.
            query_len = self.num_draft_tokens
            lengths.add_(query_len)
        self.forward_metadata = StepMetadata(table, lengths, query_len)

    def init_forward_metadata(self, forward_batch: ForwardBatch) -> None:
        if self._is_decode(forward_batch):
            self._fill(forward_batch, self._empty_metadata(forward_batch.batch_size))
        else:
            self.prefill_backend.init_forward_metadata(forward_batch)

    def init_cuda_graph_state(self, max_bs: int, max_num_tokens: int) -> None:
        """Makes the memory that captured graphs read. Graphs of several batch sizes share it: a step fills it anew."""
        self._graph = self._empty_metadata(max_bs)

    def init_forward_metadata_out_graph(self, forward_batch: ForwardBatch, in_capture: bool = False) -> None:
        """Before a graph is captured, and before each replay of it: the same memory, this batch's values."""
        if not self._is_decode(forward_batch):
            self.prefill_backend.init_forward_metadata_out_graph(forward_batch, in_capture=in_capture)
            return
        if self._graph is None:
            raise RuntimeError("init_forward_metadata_out_graph: called before init_cuda_graph_state")
        self._fill(forward_batch, self._graph)

    def get_cuda_graph_seq_len_fill_value(self) -> int:
        return _PADDING_LENGTH

    def update_verify_buffers_to_fill_after_draft(self, spec_info: Any, cuda_graph_bs: int | None) -> None:
        """A chain of drafts needs neither mask nor positions, so that there is nothing to fill."""

    def forward_decode(
        self,
        q: torch.Tensor,
        k: torch.Tensor | None,
        v: torch.Tensor | None,
        layer: RadixAttention,
        forward_batch: ForwardBatch,
        save_kv_cache: bool = True,
        q_rope: torch.Tensor | None = None,
        k_rope: torch.Tensor | None = None,
        **others: Any,
    ) -> torch.Tensor:
        """Appends the step's tokens and attends over the cache.

        Args:
            q: `[tokens, heads * (512 + 64)]`, or `[tokens, heads, 512]` with `q_rope`.
            k: `[tokens, 1, 512 + 64]`, or its latent part with `k_rope`; None appends nothing.
            v: as SGLang gives it; the latent part of k is what counts.
            q_rope, k_rope: `[tokens, heads, 64]` and `[tokens, 1, 64]`.

        Returns:
            `[tokens, heads * 512]` in q's dtype.

        Raises:
            ValueError: a shape does not fit the step. NotImplementedError: a layer is not plain causal attention.
        """
        _check_layer(layer, others)
        if layer.head_dim != self._width or layer.v_head_dim != self._latent_dim:
            raise ValueError(
                f"layer: got widths {layer.head_dim} and {layer.v_head_dim}; want {self._width} and {self._latent_dim} "
                f"(the absorbed form)"
            )
        if k is not None and save_kv_cache:
            self._append(k, v, k_rope, layer, forward_batch)
        step = self.forward_metadata
        if step is None:
            raise RuntimeError("forward_decode: called before init_forward_metadata")
        heads, requests = layer.tp_q_head_num, step.seq_lens.shape[0]
        latent = q.view(-1, heads, self._width if q_rope is None else self._latent_dim)
        tokens = latent.shape[0]
        if tokens != requests * step.query_len:
            raise ValueError(f"q: got {tokens} tokens; want {step.query_len} of each of the step's {requests} requests")
        if q_rope is not None:
            q_rope = q_rope.view(tokens, heads, -1).unflatten(0, (requests, step.query_len))
        pool: MLATokenToKVPool = self.token_to_kv_pool
        out: torch.Tensor = flashmla.decode(
            latent.unflatten(0, (requests, step.query_len)),
            pool.get_key_buffer(layer.layer_id).view(-1, self.page_size, 1, self._width),
            step.page_table,
            step.seq_lens,
            softmax_scale=float(layer.scaling),
            causal=True,
            latent_dim=self._latent_dim,
            q_rope=q_rope,
        )
        return out.view(tokens, heads * self._latent_dim)

    def _append(
        self, k: torch.Tensor, v: Any, k_rope: torch.Tensor | None, layer: RadixAttention, forward_batch: ForwardBatch
    ) -> None:
        pool: MLATokenToKVPool = self.token_to_kv_pool
        if k_rope is None:
            pool.set_kv_buffer(layer, forward_batch.out_cache_loc, k, v)
        else:
            pool.set_mla_kv_buffer(layer, forward_batch.out_cache_loc, k, k_rope)

    def forward_extend(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        layer: RadixAttention,
        forward_batch: ForwardBatch,
        save_kv_cache: bool = True,
        q_rope: torch.Tensor | None = None,
        k_rope: torch.Tensor | None = None,
        **others: Any,
    ) -> Any:
        """Drafts that are verified: as `forward_decode`. Prompts: the Triton back end, which takes q and k whole."""
        if self._is_decode(forward_batch):
            return self.forward_decode(q, k, v, layer, forward_batch, save_kv_cache, q_rope, k_rope, **others)
        if q_rope is not None:
            q = torch.cat([q.view(*q_rope.shape[:-1], -1), q_rope], dim=-1)
        if k_rope is not None:
            k = torch.cat([k.view(*k_rope.shape[:-1], -1), k_rope], dim=-1)
        return self.prefill_backend.forward_extend(q, k, v, layer, forward_batch, save_kv_cache, **others)


def _check_runner(runner: ModelRunner) -> None:
    options: ServerArgs = runner.server_args
    if not runner.use_mla_backend:
        raise ValueError(f"model: got one without MLA; --attention-backend {NAME} serves MLA models only")
    if runner.dtype not in _DTYPES:
        _refuse("dtype", runner.dtype, "takes bfloat16 and float16")
    if runner.kv_cache_dtype != runner.dtype:
        _refuse("kv_cache_dtype", runner.kv_cache_dtype, f"reads a cache of the model's dtype, {runner.dtype}")
    if getattr(runner.token_to_kv_pool, "use_dsa", False):
        _refuse("model", "one with DeepSeek sparse attention", "attends over every key")
    if runner.sliding_window_size is not None:
        _refuse("sliding_window_size", runner.sliding_window_size, "attends over every key")
    if runner.dcp_size != 1:
        _refuse("dcp_size", runner.dcp_size, "has no decode context parallelism in this version")
    if getattr(runner.token_to_kv_pool_allocator, "translate_kv_loc", None) is not None:
        _refuse("memory pool", "the unified one", "reads slots from req_to_token, which are virtual ones there")
    if options.speculative_algorithm is not None and options.speculative_eagle_topk != 1:
        _refuse("speculative_eagle_topk", options.speculative_eagle_topk, "verifies chains of drafts, want 1")
    if torch.device(runner.device).type == "cuda" and not any(b.device == "cuda" for b in flashmla.backends()):
        _refuse("device", runner.device, "needs a flashmla that was built where a CUDA toolkit of 12.8 or newer is")


def _check_layer(layer: RadixAttention, others: dict[str, Any]) -> None:
    for name, value in others.items():
        if value is not None:
            _refuse(name, type(value).__name__, "does not take this argument in decode")
    if layer.sliding_window_size is not None and layer.sliding_window_size > -1:
        _refuse("sliding_window_size", layer.sliding_window_size, "attends over every key")
    if layer.logit_cap:
        _refuse("logit_cap", layer.logit_cap, "computes plain softmax attention")
    if layer.xai_temperature_len > 0:
        _refuse("xai_temperature_len", layer.xai_temperature_len, "computes plain softmax attention")
    if layer.is_cross_attention or layer.attn_type != AttentionType.DECODER:
        kind = "cross-attention" if layer.is_cross_attention else layer.attn_type
        _refuse("attn_type", kind, "is for decoder self-attention")
    if layer.k_scale_float not in (None, 1.0):
        _refuse("k_scale", layer.k_scale_float, "reads a cache without scales")
