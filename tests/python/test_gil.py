"""The interpreter lock is released around a call, and calls from several threads are independent."""

import threading
import time

import numpy as np
import problem as problems

import flashmla


def test_python_runs_while_a_call_does():
    """While another thread is in a decode by the slow reference, this one gets on; with the lock held it would stop."""
    problem = problems.make(1, [3000] * 2, heads_q=64, latent_dim=512, rope_dim=64, dtype="fp32")
    arrays, options = problem.arrays(), problem.options()
    call = []

    def decode():
        begin = time.perf_counter()
        flashmla.decode(*arrays, **options, backend="reference")
        call.extend((begin, time.perf_counter()))

    thread = threading.Thread(target=decode)
    thread.start()
    ticks = []
    while thread.is_alive():
        time.sleep(0.001)
        ticks.append(time.perf_counter())
    begin, end = call
    inside = [begin, *(tick for tick in ticks if begin < tick < end), end]
    longest = max(later - earlier for earlier, later in zip(inside, inside[1:], strict=False))
    assert end - begin > 0.02, "the call is too short to show anything"
    assert longest < 0.5 * (end - begin), f"stopped for {longest:.3f} s of a call of {end - begin:.3f} s"


def test_concurrent_calls_give_the_same_bits(place):
    problem = problems.make(2, [200, 31, 0, 77], heads_q=16, dtype="bf16")
    want = flashmla.decode(*problem.arrays(), **problem.options(), **place)
    results = [None] * 8

    def call(index):
        for _ in range(5):
            results[index] = flashmla.decode(*problem.arrays(), **problem.options(), **place)

    threads = [threading.Thread(target=call, args=(index,)) for index in range(len(results))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for got in results:
        np.testing.assert_array_equal(got, want)
