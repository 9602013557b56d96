"""`flashmla demo`: proof, table, plots and one sentence."""

import json
import time
import unittest
import xml.etree.ElementTree

from program import ProgramTest, run


class Demo(ProgramTest):
    def test_demo(self):
        folder = self.folder / "made" / "here"
        start = time.monotonic()
        text = self.right("demo", "--out", folder)
        self.assertLess(time.monotonic() - start, 180)
        self.assertIn("Right: 4 of 4 results", text)
        for name in ("decode-lengths.svg", "decode-roofline.svg"):
            self.assertIn(str(folder / name), text)
            self.assertTrue(xml.etree.ElementTree.parse(folder / name).getroot().tag.endswith("svg"))
        rows = json.loads((folder / "decode.json").read_text())["rows"]
        self.assertEqual({row["heads_q"] for row in rows}, {16, 128})
        self.assertEqual([row["name"] for row in rows[:4]], ["DeepSeek-V2-Lite", "DeepSeek-V2-Lite, 2 tokens",
                                                             "DeepSeek-V3", "DeepSeek-V3, 2 tokens"])
        self.assertTrue(all(row["right"] and row["seq_k_mean"] < row["seq_k"] for row in rows[:4]))
        self.assertRegex(text, r"\nEvery result is right, and decode runs at \d+ % of what this machine's arithmetic or "
                               r"memory allows \(median of 18 shapes; \d+ to \d+ %\)\.\n$")

    def test_a_fault_makes_it_exit_with_1(self):
        done = run("demo", "--out", self.folder, "--inject-error", 0.5)
        self.assertEqual((done.returncode, done.stderr), (1, ""))
        self.assertTrue(done.stdout.endswith("see the lines marked WRONG above.\n"), done.stdout[-300:])


if __name__ == "__main__":
    unittest.main()
