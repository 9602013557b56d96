"""A plain Flash-Decoding kernel for MLA in Triton: 16 heads a program, 32 keys a step, nothing tuned."""

from __future__ import annotations

import triton
import triton.language as tl

HEADS = 16
KEYS = 32


@triton.jit
def _part(q, cache, table, lengths, parts, scale, heads, table_width, splits,
          PAGE: tl.constexpr, HEADS: tl.constexpr, KEYS: tl.constexpr, LATENT: tl.constexpr,
          ROPE: tl.constexpr):  # fmt: skip
    """One split of one request for HEADS heads: its output, normalised, and behind it the log of its sum."""
    request, group, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    width: tl.constexpr = LATENT + ROPE
    length = tl.load(lengths + request)
    each = tl.cdiv(tl.cdiv(length, splits), KEYS) * KEYS
    begin = split * each
    end = tl.minimum(begin + each, length)
    head = group * HEADS + tl.arange(0, HEADS)
    column, rope_column = tl.arange(0, LATENT), LATENT + tl.arange(0, ROPE)
    row = (request * heads + head).to(tl.int64)
    kept = (head < heads)[:, None]
    q_latent = tl.load(q + row[:, None] * width + column[None, :], mask=kept, other=0.0)
    q_rope = tl.load(q + row[:, None] * width + rope_column[None, :], mask=kept, other=0.0)
    largest = tl.full([HEADS], float("-inf"), tl.float32)
    total = tl.zeros([HEADS], tl.float32)
    out = tl.zeros([HEADS, LATENT], tl.float32)
    for first in range(begin, end, KEYS):
        key = first + tl.arange(0, KEYS)
        seen = key < end
        page = tl.load(table + request * table_width + key // PAGE, mask=seen, other=0).to(tl.int64)
        place = (page * PAGE + key % PAGE) * width
        latent = tl.load(cache + place[:, None] + column[None, :], mask=seen[:, None], other=0.0)
        rope = tl.load(cache + place[:, None] + rope_column[None, :], mask=seen[:, None], other=0.0)
        scores = (tl.dot(q_latent, tl.trans(latent)) + tl.dot(q_rope, tl.trans(rope))) * scale
        scores = tl.where(seen[None, :], scores, float("-inf"))
        now = tl.maximum(largest, tl.max(scores, 1))
        weights = tl.exp(scores - now[:, None])
        shrink = tl.exp(largest - now)
        total = total * shrink + tl.sum(weights, 1)
        out = out * shrink[:, None] + tl.dot(weights.to(latent.dtype), latent)
        largest = now
    place = (row * splits + split) * (LATENT + 1)
    empty = begin >= end
    tl.store(parts + place[:, None] + column[None, :], out / tl.where(empty, 1.0, total)[:, None], mask=kept)
    tl.store(parts + place + LATENT, tl.where(empty, float("-inf"), largest + tl.log(total)), mask=head < heads)


@triton.jit
def _merge(parts, out, splits, LATENT: tl.constexpr):
    """Joins the splits of one query row."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, LATENT)
    largest = float("-inf")
    total = 0.0
    merged = tl.zeros([LATENT], tl.float32)
    for split in range(splits):
        place = parts + (row * splits + split) * (LATENT + 1)
        log = tl.load(place + LATENT)
        if log > float("-inf"):
            now = tl.maximum(largest, log)
            shrink, weight = tl.exp(largest - now), tl.exp(log - now)
            merged = merged * shrink + tl.load(place + column) * weight
            total = total * shrink + weight
            largest = now
    tl.store(out + row * LATENT + column, (merged / total).to(out.dtype.element_ty))


def decode(q, cache, table, lengths, parts, out, scale):
    """`q` `[b, h, 576]`, `parts` fp32 `[b, h, splits, 513]`, `out` `[b, h, 512]`; every request has a key."""
    batch, heads, splits, wide = parts.shape
    grid = (batch, triton.cdiv(heads, HEADS), splits)
    _part[grid](q, cache, table, lengths, parts, scale, heads, table.shape[1], splits, PAGE=cache.shape[1], HEADS=HEADS,
                KEYS=KEYS, LATENT=wide - 1, ROPE=q.shape[-1] - wide + 1)  # fmt: skip
    _merge[(batch * heads,)](parts, out, splits, LATENT=wide - 1)
