"""Named sets of cases."""

from __future__ import annotations

from .cases import Case, between, equal, normal, skewed, tutorial

TUTORIAL_LENGTHS = (1024, 2048, 4096, 8192, 16384, 32768)


def _grid(batches, heads, lengths, tokens=(1,)) -> list[Case]:
    return [equal(b, h, n, seq_q=s) for h in heads for s in tokens for b in batches for n in lengths]


def _low_batch() -> list[Case]:
    rest = [equal(4, 16, 8192), equal(16, 16, 4096), equal(4, 128, 8192), equal(16, 128, 4096)]
    return _grid((1,), (16, 128), (512, 4096, 32768, 131072)) + rest


def _ragged() -> list[Case]:
    return [
        between(128, 16, 2048, 6143), normal(128, 16, 4096), normal(128, 128, 4096), normal(128, 128, 16384),
        skewed(16), skewed(128),
    ]  # fmt: skip


def _mtp() -> list[Case]:
    """Several new tokens a request: speculative decoding."""
    rest = [equal(128, 16, 4096, seq_q=2), equal(128, 16, 4096, seq_q=4), normal(128, 128, 4096, seq_q=2)]
    return _grid((1, 16), (16,), (4096,), (2, 4)) + rest


def _targets_low_batch() -> list[Case]:
    """Aims of the portable kernel, us on an H200 that reads 4650 GB/s."""
    return [
        equal(1, 16, 512, 6.5), equal(1, 16, 4096, 8), equal(1, 16, 32768, 18), equal(1, 16, 131072, 50),
        equal(4, 16, 8192, 18), equal(16, 16, 4096, 27), equal(1, 128, 512, 8), equal(1, 128, 4096, 12.5),
    ]  # fmt: skip


def _targets_hopper() -> list[Case]:
    """Aims of the Hopper kernels, us on an H200 that reads 4650 GB/s and multiplies at 780 TFLOP/s."""
    return [
        equal(1, 16, 512, 4.9), equal(1, 16, 4096, 6.2), equal(1, 16, 32768, 14.5), equal(1, 16, 131072, 41),
        equal(1, 128, 512, 6), equal(1, 128, 4096, 9), equal(1, 128, 32768, 22), equal(1, 128, 131072, 63),
        equal(4, 16, 8192, 14.5), equal(16, 16, 4096, 24), equal(32, 16, 4096, 41.5), equal(32, 8, 4096, 39.5),
        equal(4, 128, 8192, 21), equal(16, 128, 4096, 33.5), equal(64, 128, 4096, 110), equal(128, 16, 1024, 39.5),
        equal(128, 16, 4096, 139), equal(128, 16, 16384, 541), equal(256, 16, 1024, 74), equal(128, 32, 4096, 142),
        equal(128, 32, 16384, 545), equal(128, 64, 1024, 42.5), equal(128, 64, 4096, 142), equal(128, 64, 16384, 552),
        equal(128, 16, 4096, 141, seq_q=2), equal(128, 16, 4096, 143, seq_q=4), between(128, 16, 2048, 6143, 147),
        equal(128, 128, 1024, 61), normal(128, 128, 4096, 232), normal(128, 128, 16384, 858),
        *(tutorial(128, n, us) for n, us in zip(TUTORIAL_LENGTHS, (63, 118, 225, 435, 855, 1690))), skewed(16, 50),
        skewed(128, 78),
    ]  # fmt: skip


def _all() -> list[Case]:
    """The widest list: every regime in which libraries differ. bf16."""
    wide = [*_grid((128,), (16, 64), (1024, 4096, 16384)), *_grid((128,), (32,), (4096, 16384))]
    more = [equal(32, 16, 4096), equal(32, 8, 4096), equal(256, 16, 1024), equal(64, 128, 4096), equal(128, 128, 1024)]
    many = [equal(128, 16, 4096, seq_q=2), equal(128, 16, 4096, seq_q=4), normal(128, 128, 4096, seq_q=2)]
    return [
        *_low_batch(), *wide, *more, *many, *_ragged(), *(tutorial(h, n) for h in (128, 16) for n in TUTORIAL_LENGTHS)
    ]  # fmt: skip


SETS = {
    "tutorial": lambda: [tutorial(128, n) for n in TUTORIAL_LENGTHS],
    "v2-lite": lambda: _grid((1, 8, 64), (16,), (1024, 4096, 16384)),
    "v3-tp8": lambda: _grid((1, 32, 128), (16,), (4096, 16384, 65536)),
    "low-batch": _low_batch,
    "ragged": _ragged,
    "mtp": _mtp,
    "targets-low-batch": _targets_low_batch,
    "targets-hopper": _targets_hopper,
    "targets-many-heads": lambda: [case for case in _targets_hopper() if case.heads_q == 128 and case.batch > 1],
    "decode-targets": lambda: [*_targets_low_batch(), *_targets_hopper()],
    "all": _all,
    "cpu": lambda: [equal(8, 16, 4096), equal(8, 128, 4096), equal(1, 16, 32768)],
}
ABOUT = {
    "tutorial": "b 128, h_q 128, request i of L + 2 i tokens, L = 1024 .. 32768",
    "v2-lite": "DeepSeek-V2-Lite: 16 heads, b 1 .. 64, s_k 1024 .. 16384",
    "v3-tp8": "DeepSeek-V3 over 8 GPUs: 16 heads each, b 1 .. 128, s_k 4096 .. 65536",
    "low-batch": "b 1, 4 and 16, 16 and 128 heads, s_k 512 .. 131072",
    "ragged": "lengths that differ within a batch",
    "mtp": "2 and 4 new tokens a request",
    "targets-low-batch": "cases with an aim for the portable kernel on an H200",
    "targets-hopper": "cases with an aim for the Hopper kernels on an H200",
    "targets-many-heads": "those of them with 128 heads and several requests",
    "decode-targets": "the first two of these; of a case in both, the sharper aim",
    "all": "every case of the sets above, and more head counts",
    "cpu": "b 8 h_q 16 s_k 4096; b 8 h_q 128 s_k 4096; b 1 h_q 16 s_k 32768",
}


def cases_of(names: list[str]) -> list[Case]:
    """Cases of several sets, each once; where two sets aim at the same case, the sharper aim counts."""
    found: dict[str, Case] = {}
    for name in names:
        for case in SETS[name]():
            known = found.get(case.name)
            if known is None or (case.target_us or float("inf")) < (known.target_us or float("inf")):
                found[case.name] = case
    return list(found.values())
