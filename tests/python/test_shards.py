"""Decode context parallelism without an engine: ranks are processes, each with its own share of the cached tokens.

Rank r of n holds the tokens whose place in the sequence is r modulo n, as engines spread them; a rank may hold none of a short
request. Each rank decodes over its share and sends its output and lse; merged, they are the attention over all tokens.
"""

import multiprocessing

import numpy
import pytest

import flashmla

HEADS, LATENT, ROPE, PAGE = 16, 512, 64, 16
LENGTHS = numpy.array([1, 2, 3, 40, 333, 0], numpy.int32)
SCALE = 0.1147


def cached_tokens():
    rng = numpy.random.default_rng(5)
    q = rng.standard_normal((len(LENGTHS), 1, HEADS, LATENT + ROPE), numpy.float32)
    return q, [rng.standard_normal((length, LATENT + ROPE), numpy.float32) for length in LENGTHS]


def paged(sequences):
    """The sequences in a cache of pages, one after the other, and the table of their pages."""
    width = max(1, max(-(-len(tokens) // PAGE) for tokens in sequences))
    cache = numpy.full((width * len(sequences) + 1, PAGE, 1, LATENT + ROPE), numpy.nan, numpy.float32)
    table = numpy.full((len(sequences), width), -1, numpy.int32)
    for request, tokens in enumerate(sequences):
        for first in range(0, len(tokens), PAGE):
            page = request * width + first // PAGE + 1
            part = tokens[first : first + PAGE]
            cache[page, : len(part), 0] = part
            table[request, first // PAGE] = page
    return cache, table, numpy.array([len(tokens) for tokens in sequences], numpy.int32)


def decode(sequences, q):
    return flashmla.decode(q, *paged(sequences), softmax_scale=SCALE, return_lse=True, empty_lse="-inf", threads=1)


def rank_main(rank, ranks, pipe):
    q, sequences = cached_tokens()
    out, lse = decode([tokens[rank::ranks] for tokens in sequences], q)
    pipe.send((out, lse))
    pipe.close()


@pytest.mark.parametrize("ranks", [2, 4])
def test_processes_with_a_share_each(ranks):
    context = multiprocessing.get_context("spawn")
    started = []
    for rank in range(ranks):
        receive, send = context.Pipe(duplex=False)
        process = context.Process(target=rank_main, args=(rank, ranks, send))
        process.start()
        send.close()
        started.append((process, receive))
    parts = []
    for process, receive in started:
        assert receive.poll(120), "a rank sent nothing within two minutes"
        parts.append(receive.recv())
        process.join(60)
        assert process.exitcode == 0

    q, sequences = cached_tokens()
    whole_out, whole_lse = decode(sequences, q)
    # Some ranks saw no token of the short requests, and none any of the last.
    assert all(numpy.isneginf(lse[0]).all() for _, lse in parts[1:])
    assert all(numpy.isneginf(lse[-1]).all() and not out[-1].any() for out, lse in parts)

    out, lse = (array[:, 0] if array.ndim == 4 else array[..., 0].T for array in parts[0])
    for part_out, part_lse in parts[1:]:
        out, lse = flashmla.merge_states(out, lse, part_out[:, 0], part_lse[..., 0].T, empty_lse="-inf")
    numpy.testing.assert_allclose(out, whole_out[:, 0], rtol=0, atol=2e-5)
    numpy.testing.assert_allclose(lse, whole_lse[..., 0].T, rtol=1e-5, atol=1e-5)
    assert numpy.abs(whole_out).max() > 0.1
