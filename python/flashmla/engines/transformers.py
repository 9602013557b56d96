"""Attention for Hugging Face transformers: DeepSeek-V2 and -V3 models on `flashmla.prefill` and `flashmla.decode`.

    from flashmla.engines import transformers as engine
    engine.register()                                    # the attention function "mla"
    model = AutoModelForCausalLM.from_pretrained(name, attn_implementation="mla").eval()
    engine.enable_mla_decode(model)                      # decode steps over the latent cache, absorbed

`register` serves the MHA form: keys and values as the attention modules expand them, through `flashmla.prefill`.
`enable_mla_decode` replaces the modules' `expand_kv`, so that latents reach the attention function as they are cached,
and keeps transformers' own `DynamicCache` in layers whose latent and RoPE parts are two views of one row. Padding at
the left is skipped, not computed. transformers takes a name with "flash" in it for a package of its own, hence "mla".

Versions that have been run, and what is refused: docs/serving-transformers.md. Interface: `AttentionInterface`,
`AttentionMaskInterface`, `cache_utils` and the models' `expand_kv` of transformers 5.15 and later.
"""

from __future__ import annotations

import types
from typing import Any

import torch
from transformers import AttentionInterface, AttentionMaskInterface, DynamicCache
from transformers.cache_utils import DynamicLayer
from transformers.masking_utils import causal_mask_function
from transformers.models.deepseek_v2.modeling_deepseek_v2 import DeepseekV2Attention
from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3Attention

from .._operations import decode, prefill

__all__ = ["NAME", "LatentLayer", "attention", "enable_mla_decode", "mask", "register"]

NAME = "mla"
"""What `attn_implementation` calls this attention."""

_MODULES = (DeepseekV2Attention, DeepseekV3Attention)
_PAGE = 64  # tokens; a page begins at any token, so that one behind a request's padding can be its first
_REFUSED_OPTIONS = (
    "sliding_window", "softcap", "s_aux", "position_bias", "cu_seq_lens_q", "cu_seq_lens_k", "seq_idx",
    "output_attentions",
)  # fmt: skip


def register() -> None:
    """Registers `attention` and `mask` with transformers as "mla". Once is enough; more often changes nothing."""
    AttentionInterface.register(NAME, attention)
    AttentionMaskInterface.register(NAME, mask)


def enable_mla_decode(model: torch.nn.Module, *, absorb_prefill: bool = False) -> None:
    """Makes the DeepSeek-V2 and -V3 attention modules of `model` decode over latents.

    Replaces `expand_kv` of each module and puts a `LatentLayer` in the place of the cache's layer before its forward. A
    step of few tokens over a longer cache then runs `flashmla.decode`: q times W_UK, attention over the latents, output
    times W_UV. Steps without cached tokens, and long ones for which expanding costs less (more than 170 tokens at
    DeepSeek-V3's widths), run `flashmla.prefill`. With another `attn_implementation` the modules do as before.

    Args:
        model: loaded with `attn_implementation="mla"`. A second call only sets `absorb_prefill`.
        absorb_prefill: every step runs `flashmla.decode`. More arithmetic for a prompt, and no `flashmla.prefill`,
            which this version has on the CPU alone.

    Raises:
        ValueError: `model` has another attention, or no such module.
        NotImplementedError: this transformers expands keys and values outside `expand_kv` (before 5.15).
    """
    modules: list[Any] = [module for module in model.modules() if type(module) in _MODULES]
    if not modules:
        raise ValueError(
            f"model: got {type(model).__name__} without DeepseekV2Attention or DeepseekV3Attention; want a DeepSeek-V2 "
            f"or -V3 model of transformers"
        )
    for module in modules:
        if module.config._attn_implementation != NAME:
            raise ValueError(
                f"model: got attn_implementation={module.config._attn_implementation!r}; want {NAME!r} (register() "
                f"first)"
            )
        if not hasattr(type(module), "expand_kv"):
            raise NotImplementedError(
                f"model: got a {type(module).__name__} without expand_kv; want transformers 5.15 or later"
            )
    for module in modules:
        if not _latents_arrive(module):
            module.expand_kv = types.MethodType(_leave_latents, module)
            module.register_forward_pre_hook(_use_latent_layer, with_kwargs=True)
        module._flashmla_absorb_prefill = bool(absorb_prefill)


def _latents_arrive(module: Any) -> bool:
    return hasattr(module, "_flashmla_absorb_prefill")


def _leave_latents(module: Any, kv_nope: torch.Tensor, k_rot: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """In the place of `expand_kv`: `attention` knows how many tokens are new, and expands where that is the way."""
    if module.config._attn_implementation != NAME:
        return type(module).expand_kv(module, kv_nope, k_rot)  # type: ignore[no-any-return]
    return kv_nope, k_rot


def _use_latent_layer(module: Any, _: Any, arguments: dict[str, Any]) -> None:
    """Before an attention module's forward: its layer of the cache becomes a `LatentLayer`, with what it holds."""
    name = "cache" if "cache" in arguments else "past_key_values"  # from 5.24 on, and before
    cache = arguments.get(name)
    if cache is None or module.config._attn_implementation != NAME:
        return
    if not isinstance(cache, DynamicCache) or cache.offloading:
        got = "an offloaded DynamicCache" if isinstance(cache, DynamicCache) else f"a {type(cache).__name__}"
        raise NotImplementedError(f"{name}: got {got}; want a DynamicCache that stays on its device")
    while cache.layer_class_to_replicate is not None and len(cache.layers) <= module.layer_idx:
        cache.layers.append(cache.layer_class_to_replicate())
    layer = cache.layers[module.layer_idx]
    if type(layer) is DynamicLayer:
        cache.layers[module.layer_idx] = latent_layer = LatentLayer()
        vars(latent_layer).update(vars(layer))
    elif not isinstance(layer, LatentLayer):
        raise NotImplementedError(f"{name}: got a layer of class {type(layer).__name__}; want DynamicLayer")


class LatentLayer(DynamicLayer):
    """A layer of transformers' `DynamicCache` that `flashmla.decode` reads in place.

    `keys` `[b, 1, tokens, d_v]` and `values` `[b, 1, tokens, d_rope]` are views of one memory in which a token's latent
    and RoPE parts lie side by side, with room for more tokens: an update writes the new ones. A quarter more room is
    made when it is used up. Whatever replaces the two (beams reordered, a batch repeated) is gathered by the next
    update.
    """

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Appends `[b, 1, new, d_v]` and `[b, 1, new, d_rope]`; returns all tokens, views of the layer's memory.

        Raises:
            ValueError: not one head, a batch other than the cached one, or a tensor that requires a gradient.
        """
        del args, kwargs
        batch, heads, new, latent_dim = key_states.shape
        if heads != 1 or value_states.shape[1] != 1:
            raise ValueError(f"key_states: got {heads} heads; want 1: latents, which all heads share")
        _refuse_gradient("key_states", key_states)
        held = self.get_seq_length()
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        keys: Any = self.keys
        values: Any = self.values
        if held and keys.shape[0] != batch:
            raise ValueError(f"key_states: got a batch of {batch} for a cache of {keys.shape[0]}; want one batch")
        memory = _Memory.of(keys, values) if held else None
        if memory is None or held + new > memory.capacity:
            memory = _Memory.make(key_states, value_states, held + new)
            if held:
                memory.write(keys, values, 0)
        memory.write(key_states, value_states, held)
        self.keys, self.values = memory.read(batch, held + new, latent_dim)
        return self.keys, self.values


class _Memory:
    """Cached tokens of a batch: `[b * capacity + _PAGE - 1, d_v + d_rope]`, so that a page may begin at every token."""

    def __init__(self, tokens: torch.Tensor, capacity: int) -> None:
        self._tokens = tokens
        self.capacity = capacity

    @staticmethod
    def make(latent: torch.Tensor, rope: torch.Tensor, tokens: int) -> _Memory:
        """Uninitialised, for a batch like that of `latent` and at least `tokens` tokens of each request."""
        capacity = -(-(tokens + max(_PAGE, tokens // 4)) // _PAGE) * _PAGE
        with torch.inference_mode(False):  # a tensor made in inference mode could not be written outside it
            shape = (latent.shape[0] * capacity + _PAGE - 1, latent.shape[-1] + rope.shape[-1])
            return _Memory(torch.empty(shape, dtype=latent.dtype, device=latent.device), capacity)

    @staticmethod
    def of(latent: torch.Tensor, rope: torch.Tensor) -> _Memory | None:
        """The memory that two views `[b, 1, tokens, width]` share, or None."""
        width = latent.shape[-1] + rope.shape[-1]
        storage = latent.untyped_storage()
        capacity = latent.stride(0) // width
        tokens = latent.shape[0] * capacity + _PAGE - 1
        if (
            storage.data_ptr() != rope.untyped_storage().data_ptr()
            or (latent.storage_offset(), rope.storage_offset()) != (0, latent.shape[-1])
            or latent.stride() != rope.stride()
            or latent.stride()[2:] != (width, 1)
            or latent.shape[2] > capacity
            or storage.nbytes() < tokens * width * latent.element_size()
        ):
            return None
        return _Memory(latent.as_strided((tokens, width), (width, 1)), capacity)

    def _requests(self, batch: int) -> torch.Tensor:
        return self._tokens[: batch * self.capacity].unflatten(0, (batch, self.capacity))

    def write(self, latent: torch.Tensor, rope: torch.Tensor, first: int) -> None:
        batch, _, tokens, latent_dim = latent.shape
        rows = self._requests(batch)[:, first : first + tokens]
        rows[..., :latent_dim] = latent[:, 0]
        rows[..., latent_dim:] = rope[:, 0]

    def read(self, batch: int, tokens: int, latent_dim: int) -> tuple[torch.Tensor, torch.Tensor]:
        rows = self._requests(batch)[:, :tokens].unsqueeze(1)
        return rows[..., :latent_dim], rows[..., latent_dim:]

    def pages(self) -> torch.Tensor:
        """`[tokens, _PAGE, 1, width]`: page `i` begins at token `i`, so that pages overlap. For reading."""
        count, width = self._tokens.shape[0] - _PAGE + 1, self._tokens.shape[1]
        return self._tokens.as_strided((count, _PAGE, 1, width), (width, width, width, 1))

    def page_table(self, first: torch.Tensor, longest: int) -> torch.Tensor:
        """int32 `[b, width]` for requests whose tokens begin at `first` (`[b]`) of their room."""
        starts = torch.arange(first.shape[0], device=first.device) * self.capacity + first
        steps = torch.arange(0, longest, _PAGE, device=first.device)
        return (starts[:, None] + steps).to(torch.int32)


def mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: Any = 0,
    kv_offset: int = 0,
    mask_function: Any = causal_mask_function,
    attention_mask: torch.Tensor | None = None,
    **_: Any,
) -> torch.Tensor | None:
    """The mask function of "mla", for `AttentionMaskInterface`: None, or with padding a bool `[b, kv_length]`.

    Raises:
        NotImplementedError: a mask that is not causal (packed sequences, sliding windows, blocks), or a cache with room
            that counts as keys (`StaticCache`).
        ValueError: `attention_mask` does not cover the keys.
    """
    if mask_function is not causal_mask_function:
        raise NotImplementedError(
            "attention_mask: got a mask that is not causal (packed position_ids, sliding windows, blocks and masks of "
            "one's own are such); want causal attention, with or without padding"
        )
    if kv_offset != 0 or kv_length != q_offset + q_length:
        raise NotImplementedError(
            f"past_key_values: got a cache of {kv_length} keys from {kv_offset} on for {q_length} new tokens after "
            f"{int(q_offset)} (StaticCache and sliding caches are such); want a DynamicCache"
        )
    if attention_mask is None:
        return None
    if attention_mask.shape != (batch_size, kv_length):
        raise ValueError(
            f"attention_mask: got shape {tuple(attention_mask.shape)}; want [{batch_size}, {kv_length}], for all "
            f"cached and new tokens"
        )
    attention_mask = attention_mask.to(torch.bool)
    return None if bool(attention_mask.all()) else attention_mask


def attention(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    **options: Any,
) -> tuple[torch.Tensor, None]:
    """The attention function "mla", for `AttentionInterface`. Causal, aligned to the end of the keys.

    Args:
        module: the attention module.
        query: `[b, h_q, s_q, d_qk]`, fp32, fp16 or bf16.
        key, value: `[b, h, s_k, d_qk]` and `[b, h, s_k, d_v]`, `h` divides `h_q`; after `enable_mla_decode` the latents
            `[b, 1, s_k, kv_lora_rank]` and the RoPE parts `[b, 1, s_k, qk_rope_head_dim]`.
        attention_mask: what `mask` gave: None or bool `[b, s_k]`. Rows of padded queries are 0.
        dropout: 0.
        scaling: the module's softmax scale, YaRN factor included.
        options: what models pass on; options that would change the result are refused.

    Returns:
        `[b, s_q, h_q, d_v]` in the dtype of `query`, and None: no attention weights are formed.

    Raises:
        ValueError: an argument is wrong, or a tensor requires a gradient.
        NotImplementedError: dropout, an option that is not computed, a mask of another form, kept tokens of a request
            that are not one run (in a step over latents), or the MHA form away from the CPU.
    """
    _check_options(module, dropout, options)
    _refuse_gradient("query", query)
    if scaling is None:
        raise ValueError("scaling: got None; want the module's softmax scale (in MLA it has no default)")
    if attention_mask is not None and attention_mask.ndim != 2:
        raise NotImplementedError(f"attention_mask: got {attention_mask.ndim} dimensions; want [b, s_k]")
    if _latents_arrive(module):
        if _is_absorbed(module, query.shape[2], key.shape[2]):
            return _absorbed(module, query, key, value, attention_mask, float(scaling)), None
        key, value = type(module).expand_kv(module, key, value)
    return _mha(query, key, value, attention_mask, float(scaling)), None


def _check_options(module: Any, dropout: float, options: dict[str, Any]) -> None:
    if dropout != 0.0:
        raise NotImplementedError(f"dropout: got {dropout}; want 0 (model.eval()): flashmla has no dropout")
    for name in _REFUSED_OPTIONS:
        if options.get(name) is not None and options[name] is not False:
            raise NotImplementedError(f"{name}: got one; want it left out: {NAME!r} does not compute it")
    is_causal = options.get("is_causal")
    if not (getattr(module, "is_causal", True) if is_causal is None else is_causal):
        raise NotImplementedError("is_causal: got False; want causal attention")


def _refuse_gradient(name: str, tensor: torch.Tensor) -> None:
    if tensor.requires_grad and torch.is_grad_enabled():
        raise ValueError(
            f"{name}: got a tensor that requires a gradient; want torch.no_grad(): flashmla has no backward"
        )


def _is_absorbed(module: Any, new: int, total: int) -> bool:
    """Whether a step runs over latents. Per head and key, expanding costs `saved` products, absorbing `new * more`."""
    if module._flashmla_absorb_prefill:
        return True
    saved = module.kv_lora_rank * (module.qk_nope_head_dim + module.v_head_dim)
    more = 2 * module.kv_lora_rank - module.qk_nope_head_dim - module.v_head_dim
    return new < total and new * more <= saved


def _starts(counts: torch.Tensor) -> torch.Tensor:
    """int32 `[b + 1]`: where each of `counts` (`[b]`) begins, and the end."""
    return torch.nn.functional.pad(counts.cumsum(0), (1, 0)).to(torch.int32)


def _mha(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, kept: torch.Tensor | None, scale: float
) -> torch.Tensor:
    if query.device.type != "cpu":
        raise NotImplementedError(
            f"query: got a tensor on {query.device}; want the CPU, or enable_mla_decode(model, absorb_prefill=True): "
            f"flashmla.prefill runs on the CPU alone in this version"
        )
    batch, _, new, _ = query.shape
    q, k, v = (tensor.transpose(1, 2) for tensor in (query, key, value))
    if kept is None:
        starts_q, starts_k = (torch.arange(batch + 1, dtype=torch.int32) * tokens for tokens in (new, k.shape[1]))
        packed = (q.flatten(0, 1), k.flatten(0, 1), v.flatten(0, 1))
        packed_out = prefill(*packed, starts_q, starts_k, softmax_scale=scale, causal=True)
        return packed_out.unflatten(0, (batch, new))  # type: ignore[no-any-return]
    new_kept = kept[:, -new:]
    out = query.new_zeros(*q.shape[:3], v.shape[3])
    out[new_kept] = prefill(
        q[new_kept], k[kept], v[kept], _starts(new_kept.sum(1)), _starts(kept.sum(1)), softmax_scale=scale, causal=True
    )
    return out


def _absorbed(
    module: Any, query: torch.Tensor, latent: torch.Tensor, rope: torch.Tensor, kept: torch.Tensor | None, scale: float
) -> torch.Tensor:
    batch, heads, new, _ = query.shape
    total, latent_dim = latent.shape[2:]
    up_k, up_v = _up_projections(module, query, heads)
    memory = _Memory.of(latent, rope)
    if memory is None:
        if new != total:
            raise ValueError(
                "past_key_values: got cached latents and RoPE parts that do not lie side by side; want a DynamicCache, "
                "passed to the attention module by keyword"
            )
        memory = _Memory.make(latent, rope, total)  # without a cache: these tokens are all there are
        memory.write(latent, rope, 0)
    q = query.transpose(1, 2)
    if kept is None:
        first, lens = (torch.full((batch,), number, device=query.device) for number in (0, total))
        new_kept, starts_q = None, None
        q = q.flatten(0, 1)
    else:
        first, lens = _runs(kept)
        new_kept = kept[:, -new:]
        q, starts_q = q[new_kept], _starts(new_kept.sum(1))
    q_nope, q_rope = q.split([module.qk_nope_head_dim, module.qk_rope_head_dim], dim=-1)
    q_latent = torch.bmm(q_nope.transpose(0, 1), up_k).transpose(0, 1)
    if kept is None:
        q_latent, q_rope = q_latent.unflatten(0, (batch, new)), q_rope.unflatten(0, (batch, new))
    seen = decode(
        q_latent, memory.pages(), memory.page_table(first, total), lens.to(torch.int32), softmax_scale=scale,
        causal=True, latent_dim=latent_dim, q_rope=q_rope, cu_seqlens_q=starts_q,
    )  # fmt: skip
    seen = seen.reshape(-1, heads, latent_dim)
    packed = torch.bmm(seen.transpose(0, 1), up_v.transpose(1, 2)).transpose(0, 1)
    if new_kept is None:
        return packed.unflatten(0, (batch, new))
    out = packed.new_zeros(batch, new, heads, packed.shape[-1])
    out[new_kept] = packed
    return out


def _up_projections(module: Any, query: torch.Tensor, heads: int) -> tuple[torch.Tensor, ...]:
    """W_UK `[h_q, qk_nope_head_dim, kv_lora_rank]` and W_UV `[h_q, v_head_dim, kv_lora_rank]`: views of `kv_b_proj`."""
    layer = module.kv_b_proj
    if type(layer) is not torch.nn.Linear or layer.bias is not None:
        raise NotImplementedError(
            f"kv_b_proj: got {layer}; want a torch.nn.Linear without bias (quantised layers and adapters are not "
            f"absorbed)"
        )
    weight = layer.weight
    if (weight.dtype, weight.device) != (query.dtype, query.device):
        raise ValueError(
            f"kv_b_proj: got a weight of {weight.dtype} on {weight.device} for queries of {query.dtype} on "
            f"{query.device}; want one dtype and device"
        )
    by_head = weight.unflatten(0, (heads, module.qk_nope_head_dim + module.v_head_dim))
    return by_head.split([module.qk_nope_head_dim, module.v_head_dim], dim=1)


def _runs(kept: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """First kept token and number of kept tokens of each request; they must be one run."""
    lens = kept.sum(1)
    first = kept.int().argmax(1)
    behind = kept.flip(1).int().argmax(1)
    if bool(((kept.shape[1] - behind - first != lens) & (lens > 0)).any()):
        raise NotImplementedError(
            "attention_mask: got padding between kept tokens of a request; want padding at the left "
            "(tokenizer.padding_side = 'left')"
        )
    return first, lens
