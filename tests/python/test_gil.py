"""The interpreter lock is released around a call, and calls from several threads are independent."""

import threading
import time

import numpy as np
import problem as problems

import flashmla


def test_python_runs_while_a_call_does():
    """A decode by the slow reference takes most of a second; another thread has to get on meanwhile."""
    problem = problems.make(1, [3000] * 2, heads_q=64, latent_dim=512, rope_dim=64, dtype="fp32")
    arrays, options = problem.arrays(), problem.options()
    ticks, running, done = 0, threading.Event(), threading.Event()

    def call():
        running.set()
        flashmla.decode(*arrays, **options, backend="reference")
        done.set()

    thread = threading.Thread(target=call)
    thread.start()
    running.wait()
    start = time.perf_counter()
    while not done.is_set():
        time.sleep(0.001)
        ticks += 1
    seconds = time.perf_counter() - start
    thread.join()
    assert seconds > 0.05, "the call is too short to show anything"
    # With the lock held the loop is stopped for the whole call and makes a handful of steps.
    assert ticks > 20 * seconds and ticks > 10, f"{ticks} steps in {seconds:.3f} s"


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
