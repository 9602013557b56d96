"""`flashmla info`: the machine, and what a call costs and runs."""

import unittest

from program import ProgramTest


def attention_flops(lengths, *, seq_q, heads_q, d_qk, d_v, causal):
    """Counted query token by query token, straight from the contract's causal rule."""
    flops = 0
    for length in lengths:
        for token in range(seq_q):
            visible = max(0, min(length, length - seq_q + token + 1)) if causal else length
            flops += 2 * heads_q * visible * (d_qk + d_v)
    return flops


class Info(ProgramTest):
    def test_machine_back_ends_and_formats(self):
        text = self.right("info")
        for title in ("Machine", "Back ends", "KV formats"):
            self.assertIn(title, text)
        self.assertNotIn("This call", text)
        document = self.json_of("info")
        self.check_header(document, "info")
        self.assertEqual(document["machine"]["isas"][-1], "scalar")
        priorities = [backend["priority"] for backend in document["backends"]]
        self.assertEqual(priorities, sorted(priorities, reverse=True))
        self.assertEqual({"cpu", "reference"} - {backend["name"] for backend in document["backends"]}, set())
        formats = {entry["name"]: entry for entry in document["kv_formats"]}
        self.assertTrue(formats["bf16"]["implemented"])
        self.assertEqual(formats["bf16"]["bytes_per_token"], 1152)
        self.assertEqual(formats["fp8_tile128"]["bytes_per_token"], 656)
        self.assertEqual(formats["fp8_v4"]["bytes_per_token"], 584)

    def test_cost_of_a_call(self):
        for causal in (False, True):
            arguments = ["--seq-k", "0,2,700", "--seq-q", 3, "--heads-q", 20, "--ridge", 10]
            call = self.json_of("info", *arguments, *(["--causal"] if causal else []))["call"]
            shape = {"seq_q": 3, "heads_q": 20, "d_qk": 576, "d_v": 512}
            self.assertEqual(call["flops"], attention_flops([0, 2, 700], causal=causal, **shape))
            self.assertEqual(call["bytes"], 702 * 576 * 2 + 3 * 3 * 20 * (576 + 512) * 2)
            self.assertAlmostEqual(call["intensity"], call["flops"] / call["bytes"])

    def test_kernel_workspace_and_reason(self):
        call = self.json_of("info", "--heads-q", 16, "--ridge", 10)["call"]
        self.assertEqual(call["backend"], "cpu")
        self.assertGreaterEqual(call["workspace_bytes"], 0)
        self.assertNotEqual(call["reason"], "")
        text = self.right("info", "--backend", "reference", "--ridge", 10)
        self.assertIn("back end reference", text)
        self.assertIn("because", text)

    def test_bound_follows_the_given_ridge(self):
        for ridge, bound in ((1, "compute"), (100000, "memory")):
            call = self.json_of("info", "--heads-q", 16, "--ridge", ridge)["call"]
            self.assertEqual((call["bound"], call["ridge"]), (bound, ridge))

    def test_bound_follows_the_measured_ridge(self):
        call = self.json_of("info", "--heads-q", 16, "--threads", 1)["call"]
        self.assertAlmostEqual(call["ridge"], call["peak_tflops"] * 1e3 / call["peak_gbps"])
        self.assertEqual(call["bound"], "compute" if call["intensity"] > call["ridge"] else "memory")
        compute_us = call["flops"] / call["peak_tflops"] * 1e-6
        memory_us = call["bytes"] / call["peak_gbps"] * 1e-3
        self.assertAlmostEqual(call["bound_us"] / max(compute_us, memory_us), 1)

    def test_lengths_from_a_range_depend_on_the_seed_alone(self):
        def flops(*arguments):
            return self.json_of("info", "--seq-k", "100:9000", "--ridge", 10, *arguments)["call"]["flops"]

        self.assertEqual(flops("--seed", 1), flops("--seed", 1))
        self.assertNotEqual(flops("--seed", 1), flops("--seed", 2))
        per_token = 2 * 16 * (576 + 512)
        self.assertTrue(8 * 100 <= flops() / per_token <= 8 * 9000)


if __name__ == "__main__":
    unittest.main()
