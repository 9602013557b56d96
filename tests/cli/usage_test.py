"""Help, versions, and what bad usage is answered with."""

import re
import shlex
import unittest

from program import ProgramTest, run

SHAPE_FLAGS = ["--batch", "--heads-q", "--heads-kv", "--seq-q", "--seq-k", "--page-size", "--latent-dim", "--rope-dim",
               "--dtype", "--causal", "--backend", "--isa", "--threads", "--splits", "--seed", "--json"]
MODEL_COMMANDS = [["generate"], ["chat"], ["perplexity"], ["bench", "model"]]
SHARING = [["info"], ["verify"], ["bench", "decode"]]

# Arguments of a subcommand that takes the shape flags, and what the text has to say.
BAD_VALUES = [
    (["--batch", "x"], "--batch: got 'x'; want an integer, 0 .."),
    (["--batch", "-1"], "--batch: got '-1'; want an integer, 0 .."),
    (["--batch", "2.5"], "--batch: got '2.5'; want an integer"),
    (["--batch", ""], "--batch: got ''; want an integer"),
    (["--batch", "99999999999999999999"], "--batch: got '99999999999999999999'; want an integer"),
    (["--seq-k", "5,x"], "--seq-k: got 'x'; want an integer"),
    (["--seq-k", "5,"], "--seq-k: got ''; want an integer"),
    (["--seq-k", "10:1"], "--seq-k: got '10:1'; want LO:HI with LO <= HI"),
    (["--seq-k", "1,2,3", "--batch", "2"], "--seq-k: got 3 lengths with --batch 2; want one length for each request"),
    (["--dtype", "int8"], "--dtype: got 'int8'; want one of: bf16, fp16, fp32"),
    (["--threads", "-1"], "--threads: got '-1'; want an integer, 0 .."),
    (["--causal=yes"], "--causal"),
    (["--batch"], "--batch: 1 required N missing; want one value after the flag"),
    (["--batch", "1", "--batch", "2"], "--batch"),
    (["--frobnicate"], "got '--frobnicate'; want one of: --help, --batch, --heads-q"),
    (["surplus"], "got 'surplus'; want one of: --help, --batch"),
    # The library's own texts, word for word.
    (["--heads-q", "20", "--heads-kv", "3"],
     "flashmla: h_q: got h_q = 20 with h_kv = 3; want h_q >= 1, h_kv >= 1 and h_kv divides h_q\n"),
    (["--heads-q", "0"], "flashmla: h_q: got h_q = 0 with h_kv = 1; want h_q >= 1"),
    (["--latent-dim", "500"], "flashmla: latent_dim: got 500; want a multiple of 8, at least 8\n"),
    (["--rope-dim", "63"], "got 63; want a multiple of 8"),
    (["--page-size", "0"], "flashmla: kv_cache: got page = 0; want pages of at least 1 token\n"),
    (["--splits", "65"], "flashmla: splits: got 65; want 0 (chosen by the back end) .. 64\n"),
    (["--backend", "abacus"], "flashmla: backend: got 'abacus'; want one of: cpu, reference\n"),
    (["--isa", "mmx"], "flashmla: isa: got 'mmx'; want one that"),
]


class Usage(ProgramTest):
    def test_bad_values_name_what_was_got_and_what_is_wanted(self):
        for command in SHARING:
            for arguments, text in BAD_VALUES:
                with self.subTest(command=command, arguments=arguments):
                    self.assertIn(text, self.refused(*command, *arguments))

    def test_bad_values_of_single_commands(self):
        for arguments, text in [
            (["info", "--ridge", "-3"], "--ridge: got '-3'; want a number, 0.001 .. 1000000"),
            (["info", "--ridge", "nan"], "--ridge: got 'nan'; want a number"),
            (["verify", "--distribution", "normal"], "want one of: random, peaked, flat, adversarial"),
            (["verify", "--cases", "all"], "--cases: got 'all'; want one of: quick, full, demo"),
            (["verify", "--cases", "quick", "--batch", "2"], "--cases: got 'quick' together with flags that describe"),
            (["verify", "--cases", "quick", "--seed", "2"], "--cases: got 'quick' together with flags that describe"),
            (["bench", "decode", "--set", "gpu"], "--set: got 'gpu'; want one of: cpu, demo, lengths"),
            (["bench", "decode", "--set", "cpu", "--heads-q", "3"], "--heads-q: got it together with --set cpu"),
            (["bench", "decode", "--set", "lengths", "--seq-k", "3"], "--seq-k: got it together with --set lengths"),
            (["bench", "decode", "--set", "demo", "--dtype", "fp32"], "--dtype: got it together with --set demo"),
            (["bench", "decode", "--seconds", "0"], "--seconds: got '0'; want a number, 0.001 .. 3600"),
            (["bench"], "got no subcommand; want one of: decode"),
            (["bench", "encode"], "got 'encode'; want one of: decode"),
            (["frob"], "got 'frob'; want one of: info, verify, bench, demo"),
            (["demo", "--batch", "2"], "got '--batch'; want one of: --help, --out, --model, --threads"),
            (["version", "--loud"], "got '--loud'; want one of: --help"),
        ]:
            with self.subTest(arguments=arguments):
                self.assertIn(text, self.refused(*arguments))

    def test_a_shape_larger_than_the_memory_is_refused_before_it_is_allocated(self):
        for command in (["verify"], ["bench", "decode"]):
            text = self.refused(*command, "--batch", 100000, "--seq-k", 1000000)
            self.assertRegex(text, r"shape: got one of [\d.]+ TiB .*; want at most [\d.]+ [KMG]iB")

    def test_files_that_cannot_be_written_are_refused_before_the_run(self):
        missing = self.folder / "missing" / "file"
        for arguments in (["info", "--json"], ["verify", "--json"], ["bench", "decode", "--json"],
                          ["bench", "decode", "--csv"], ["bench", "decode", "--plot"],
                          ["bench", "decode", "--roofline"]):
            with self.subTest(arguments=arguments):
                text = self.refused(*arguments, missing)
                self.assertIn(f"{arguments[-1]}: got '{missing}', whose folder does not exist", text)
        occupied = self.folder / "occupied"
        occupied.write_text("a file, not a folder")
        self.assertIn("--out: got", self.refused("demo", "--out", occupied / "plots"))

    def test_no_arguments_print_the_help_as_bad_usage(self):
        done = run()
        self.assertEqual((done.returncode, done.stdout), (2, ""))
        self.assertIn("Subcommands:", done.stderr)

    def test_help_shows_examples_and_the_shared_flags(self):
        for command in SHARING:
            text = self.right(*command, "--help")
            for flag in SHAPE_FLAGS:
                self.assertRegex(text, rf"(?m)^  {flag}\b", f"{command} {flag}")
        for command in [[], *SHARING, ["demo"], *MODEL_COMMANDS]:
            text = self.right(*command, "--help")
            self.assertIn("\n  flashmla " + " ".join(command), text)
            self.assertNotIn("--inject-error", text)
            self.assertLessEqual(max(map(len, text.splitlines())), 140)
        self.assertIn("Exit codes: 0 right, 1 wrong result, 2 bad usage.", self.right("--help"))

    def test_every_example_of_the_help_is_understood(self):
        """With an unknown flag at the end, which alone may be complained about, so that nothing is run."""
        for command in ([], *SHARING, ["demo"], *MODEL_COMMANDS):
            text = self.right(*command, "--help")
            for line in re.sub(r" \\\n +", " ", text).splitlines():  # a long example goes on in the next line
                if not line.startswith("  flashmla "):
                    continue
                words = shlex.split(line[2:].split("   ")[0].strip())[1:]  # what follows three blanks is a remark
                with self.subTest(example=line):
                    self.assertIn("got '--no-such-flag'", self.refused(*words, "--no-such-flag"))

    def test_version(self):
        self.assertRegex(self.right("version"), r"^flashmla \d+\.\d+\.\d+ \(commit [0-9a-z-]+\)\n$")


if __name__ == "__main__":
    unittest.main()
