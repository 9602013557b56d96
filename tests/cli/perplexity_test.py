"""flashmla perplexity: what it prints of a text, in windows, in every form; what it refuses."""

import math
import random
import re
import subprocess
import unittest

from program import DEMO_MODEL, FIRST_LINE, PROGRAM, ProgramTest, run, tiny_config

RESULT = r"^perplexity (\d+\.\d{4})  \((\d+) tokens predicted, (\d+\.\d{4}) nat each, windows of (\d+) tokens\)$"
VERSES = (  # Genesis 1:1-4, of what the model has read
    "In the beginning God created the heaven and the earth. And the earth was without form, and void; and darkness was upon "
    "the face of the deep. And the Spirit of God moved upon the face of the waters. And God said, Let there be light: and "
    "there was light. And God saw the light, that it was good: and God divided the light from the darkness.")


class Perplexity(ProgramTest):
    def measure(self, text, *arguments):
        """Mean negative log-likelihood, tokens predicted, window."""
        path = self.folder / "text"
        path.write_text(text)
        first, result = self.right("perplexity", "--model", DEMO_MODEL, "--file", path, *arguments).splitlines()
        self.assertRegex(first, FIRST_LINE)
        match = re.match(RESULT, result)
        self.assertIsNotNone(match, result)
        perplexity, mean = float(match[1]), float(match[3])
        self.assertAlmostEqual(math.log(perplexity), mean, 3)
        return mean, int(match[2]), int(match[4])

    def tokens(self, text):
        done = subprocess.run([PROGRAM, "tokenize", "--model", DEMO_MODEL], input=text, capture_output=True, text=True,
                              timeout=500, check=True)
        return len(done.stdout.split())

    def test_windows(self):
        text = VERSES
        count = self.tokens(text)
        whole, predicted, window = self.measure(text)
        self.assertEqual((predicted, window), (count - 1, 2048))
        means = []
        for length in (2, 16, 64):
            mean, predicted, window = self.measure(text, "--max-model-len", length)
            self.assertEqual((predicted, window), (sum(min(length, count - first) - 1 for first in
                                                       range(0, count, length)), length))
            means.append(mean)
        # The more a token has before it, the better it is predicted.
        self.assertEqual(sorted(means, reverse=True), means)
        self.assertLess(whole, means[-1])

    def test_sense_is_predicted_better_than_nonsense(self):
        words = VERSES.split(" ")
        random.Random(1).shuffle(words)
        self.assertLess(self.measure(VERSES)[0], 0.9 * self.measure(" ".join(words))[0])

    def test_back_ends_and_forms_agree(self):
        first = self.measure(VERSES, "--dtype", "fp32", "--attention-form", "mqa")[0]
        # The weights are bf16, and what meets them is rounded to it.
        for arguments in (["--attention-form", "mha"], ["--backend", "reference"], ["--block-size", 3]):
            self.assertAlmostEqual(self.measure(VERSES, "--dtype", "fp32", *arguments)[0], first, delta=0.02)

    def test_what_is_refused(self):
        empty = self.folder / "empty"
        empty.write_text("")
        model = ["perplexity", "--model", DEMO_MODEL]
        self.assertIn("--file", self.refused(*model))
        self.assertIn("--file: got '/no/such/text', which cannot be read", self.refused(*model, "--file", "/no/such/text"))
        self.assertIn(f"--file: got '{self.folder}', which cannot be read", self.refused(*model, "--file", self.folder))
        self.assertIn("--max-model-len: got 4096; want at most the model's max_position_embeddings, 2048",
                      self.refused(*model, "--file", empty, "--max-model-len", 4096))
        self.assertIn("--model: got a model without a tokenizer", self.refused(
            "perplexity", "--model", tiny_config(self.folder), "--random-weights", 1, "--file", empty))
        done = run(*model, "--file", empty)
        self.assertEqual(done.returncode, 2)
        self.assertIn("text: got fewer than 2 tokens; want more", done.stderr)


if __name__ == "__main__":
    unittest.main()
