"""`flashmla verify`: right results, found faults, and the files it writes."""

import os
import unittest

from program import ProgramTest, run

ROW = {"library": str, "backend": str, "kernel": str, "case": str, "right": bool, "worst_share_of_bound": float,
       "out_error": float, "lse_error": float, "worst": str}


class Verify(ProgramTest):
    def isas(self):
        return self.json_of("info")["machine"]["isas"]

    def test_odd_shapes(self):
        text = self.right("verify", "--heads-q", 20, "--page-size", 61, "--seq-q", 3, "--seq-k", 700)
        self.assertIn("Right: 1 of 1 results are within the contract's bound", text)
        self.assertRegex(text, r"worst (out|lse) at request \d+, token \d+, head \d+")
        for arguments in (["--batch", 0], ["--seq-q", 0], ["--seq-k", 0], ["--seq-k", "1,0,77", "--causal"],
                          ["--heads-q", 6, "--heads-kv", 3, "--latent-dim", 24, "--rope-dim", 8, "--seq-k", 33],
                          ["--page-size", 1, "--seq-k", "3:90", "--rope-dim", 0],
                          ["--seq-q", 4, "--seq-k", 2, "--causal"]):
            with self.subTest(arguments=arguments):
                self.right("verify", *arguments)

    def test_dtypes_distributions_and_splits(self):
        for dtype in ("bf16", "fp16", "fp32"):
            for distribution in ("random", "peaked", "flat", "adversarial"):
                with self.subTest(dtype=dtype, distribution=distribution):
                    rows = self.json_of("verify", "--batch", 2, "--seq-k", 300, "--dtype", dtype, "--distribution",
                                        distribution, "--splits", 3)["rows"]
                    self.assertIn(f"{dtype}, {distribution}, seed 1", rows[0]["case"])

    def test_every_instruction_set(self):
        rows = self.json_of("verify", "--isa", "all", "--batch", 2, "--seq-k", 200)["rows"]
        self.assertEqual(len(rows), len(self.isas()))
        self.assertEqual(len({row["kernel"] for row in rows}), len(rows))

    def test_the_quick_list_runs_without_flags(self):
        text = self.right("verify")
        lines = [line for line in text.splitlines() if line.startswith("right ")]
        self.assertGreater(len(lines), 50)
        self.assertIn(f"Right: {len(lines)} of {len(lines)} results", text)

    def test_the_full_list(self):
        if os.environ.get("FLASHMLA_TEST_FULL") != "1":
            self.skipTest("the full list runs with FLASHMLA_TEST_FULL=1")
        self.right("verify", "--cases", "full", "--isa", "all")

    def test_json(self):
        document = self.json_of("verify", "--batch", 2, "--seq-k", 100, "--threads", 1)
        self.check_header(document, "verify")
        self.assertEqual((document["right"], document["threads"]), (True, 1))
        (row,) = document["rows"]
        self.assertEqual({key: type(value) for key, value in row.items()}, ROW)
        self.assertLess(row["worst_share_of_bound"], 1)
        self.assertGreater(row["out_error"], 0)

    def test_a_fault_is_found_named_and_exits_with_1(self):
        path = self.folder / "wrong.json"
        for isa in self.isas():
            with self.subTest(isa=isa):
                done = run("verify", "--batch", 2, "--seq-k", 100, "--isa", isa, "--inject-error", 0.5, "--json", path)
                self.assertEqual((done.returncode, done.stderr), (1, ""))
                self.assertIn("\nWRONG: 1 of 1 results are not within", done.stdout)
                self.assertRegex(done.stdout, r"1 elements exceed their bound; worst out at request \d, token 0, head")
                self.assertIn('"right": false', path.read_text())

    def test_back_end_cuda(self):
        """On a GPU right results; where none is, or the build has no CUDA, a refusal that says so."""
        call = ["--batch", 2, "--seq-k", "0:300", "--heads-q", 20, "--page-size", 16]
        done = run("verify", "--backend", "cuda", *call)
        if done.returncode == 0:
            (row,) = self.json_of("verify", "--backend", "cuda", *call)["rows"]
            self.assertEqual((row["backend"], row["right"]), ("cuda", True))
            document = self.json_of("verify", "--backend", "cuda")
            self.assertEqual({row["backend"] for row in document["rows"]}, {"cuda"})
            self.assertGreater(len(document["rows"]), 30)
            self.assertGreater(document["left_out"], 0)
            self.assertIn("dtype: got fp32", self.refused("verify", "--backend", "cuda", "--dtype", "fp32"))
            done = run("verify", "--backend", "cuda", *call, "--inject-error", 0.5)
            self.assertEqual(done.returncode, 1)
            return
        for arguments in ([], call, ["--cases", "demo"]):
            with self.subTest(arguments=arguments):
                text = self.refused("verify", "--backend", "cuda", *arguments)
                self.assertRegex(text, r"^flashmla: (backend: got 'cuda'; want one of: |device: got CUDA, but .*; "
                                       r"want an NVIDIA GPU \(compute capability 8\.0 or newer\) and its driver\n)")

    def test_instruction_sets_are_of_the_cpu(self):
        for isa in ("all", "avx2"):
            text = self.refused("verify", "--backend", "cuda", "--isa", isa, "--batch", 2)
            self.assertRegex(text, f"^flashmla: (--isa: got '{isa}' with back end cuda; want none|backend: got 'cuda')")

    def test_nothing_is_left_out_on_the_cpu(self):
        self.assertEqual(self.json_of("verify", "--cases", "demo", "--threads", 1)["left_out"], 0)

    def test_a_fault_in_a_list_is_found(self):
        done = run("verify", "--cases", "demo", "--inject-error", 0.5)
        self.assertEqual(done.returncode, 1)
        self.assertIn("WRONG: 4 of 4 results", done.stdout)

    def test_a_fault_far_below_the_bound_is_no_fault(self):
        self.right("verify", "--batch", 2, "--seq-k", 100, "--inject-error", 1e-9)


if __name__ == "__main__":
    unittest.main()
