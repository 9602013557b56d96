"""`flashmla bench decode`: fields, arithmetic of the fields, CSV, plots, wrong results, the progress bar."""

import csv
import json
import os
import pty
import re
import subprocess
import unittest
import xml.etree.ElementTree

from program import PROGRAM, ProgramTest, run

NUMBER = (int, float)
ROW = {
    "library": str, "backend": str, "kernel": str, "name": str, "batch": int, "seq_q": int, "heads_q": int,
    "heads_kv": int, "seq_k": int, "seq_k_mean": NUMBER, "page_size": int, "latent_dim": int, "rope_dim": int,
    "dtype": str, "causal": bool, "right": bool, "time_us": NUMBER, "time_us_p10": NUMBER, "time_us_p90": NUMBER,
    "time_us_min": NUMBER, "repeats": int, "gbps": NUMBER, "tflops": NUMBER, "flops": NUMBER, "bytes": NUMBER,
    "peak_tflops": NUMBER, "peak_gbps": NUMBER, "bound": str, "share_of_bound": NUMBER, "buffer_copies": int,
    "check": str,
}
SMALL = ["--batch", 2, "--seq-k", "300,700", "--seconds", 5]
SVG = "{http://www.w3.org/2000/svg}"


class Bench(ProgramTest):
    def check_row(self, row, ceilings):
        self.assertEqual(list(row), list(ROW))
        for key, kind in ROW.items():
            self.assertIsInstance(row[key], kind, key)
        self.assertLessEqual(row["time_us_min"], row["time_us_p10"])
        self.assertLessEqual(row["time_us_p10"], row["time_us"])
        self.assertLessEqual(row["time_us"], row["time_us_p90"])
        self.assertGreaterEqual(row["repeats"], 20)
        self.assertGreaterEqual(row["buffer_copies"], 2)
        self.assertAlmostEqual(row["gbps"] / (row["bytes"] / row["time_us"] * 1e-3), 1)
        self.assertAlmostEqual(row["tflops"] / (row["flops"] / row["time_us"] * 1e-6), 1)
        compute_us = row["flops"] / ceilings["peak_tflops"] * 1e-6
        memory_us = row["bytes"] / ceilings["peak_gbps"] * 1e-3
        self.assertEqual(row["bound"], "compute" if compute_us > memory_us else "memory")
        self.assertAlmostEqual(row["share_of_bound"], max(compute_us, memory_us) / row["time_us"])
        self.assertEqual(row["peak_tflops"], ceilings["peak_tflops"])
        self.assertEqual(row["peak_gbps"], ceilings["peak_gbps"])

    def test_json_fields_and_their_arithmetic(self):
        document = self.json_of("bench", "decode", *SMALL, "--commit", "abc123", "--threads", 1)
        self.check_header(document, "bench decode")
        self.assertEqual((document["commit"], document["threads"]), ("abc123", 1))
        (row,) = document["rows"]
        self.check_row(row, document["ceilings"])
        self.assertEqual((row["library"], row["backend"], row["dtype"]), ("flashmla", "cpu", "bf16"))
        self.assertEqual((row["batch"], row["heads_q"], row["seq_k"], row["seq_k_mean"]), (2, 16, 700, 500))
        self.assertEqual(row["flops"], 2 * 16 * 1000 * (576 + 512))
        self.assertEqual(row["bytes"], 1000 * 576 * 2 + 2 * 16 * (576 + 512) * 2)
        self.assertIn("2 of 2 requests, 16 of 16 heads compared", row["check"])

    def test_table(self):
        text = self.right("bench", "decode", *SMALL)
        header = next(line for line in text.splitlines() if line.startswith("b  s_q"))
        for title in ("h_q", "s_k", "kernel", "time", "p10 .. p90", "repeats", "GB/s", "GFLOP/s", "bound", "of bound"):
            self.assertIn(title, header)
        self.assertRegex(text, r"\n2 +1 +16 +300\.\.700  cpu_\w+ +[\d.]+ [um]s ")
        for remark in ("Ceilings, measured in this run", "Cold caches:", "Checked before timing, on sampled rows"):
            self.assertIn(remark, text)

    def test_a_modelled_device(self):
        """An H20: 4000 GB/s, 148 TFLOP/s. 16 heads wait for memory, 128 for products."""
        shape = ["--batch", 64, "--seq-k", 4096, "--model-device", "h20"]
        text = self.right("bench", "decode", *shape, "--heads-q", 16)
        self.assertIn("H20: MODELLED, NOT MEASURED.", text)
        self.assertIn("148 TFLOP/s (dense bf16) and reads 4000 GB/s", text)
        for heads, bound in ((16, "memory"), (128, "compute")):
            document = self.json_of("bench", "decode", *shape, "--heads-q", heads)
            self.assertTrue(document["modelled"])
            self.assertEqual((document["device"], document["multiprocessors"]), ("H20", 78))
            (row,) = document["rows"]
            keys = 64 * 4096
            flops, moved = 2 * heads * keys * (576 + 512), keys * 576 * 2 + 64 * heads * (576 + 512) * 2
            self.assertEqual((row["flops"], row["bytes"], row["bound"]), (flops, moved, bound))
            self.assertAlmostEqual(row["floor_us"], max(flops / 148e6, moved / 4e6), places=3)
            self.assertNotIn("time_us", row)
        # Larger than this machine's memory: nothing of it is made.
        self.assertIn("compute", self.right("bench", "decode", "--model-device", "h200", "--batch", 4096, "--heads-q", 128,
                                            "--seq-k", 131072))

    def test_a_modelled_device_runs_nothing(self):
        for flags, text in (
            (["--model-device", "h300"], "--model-device: got 'h300'; want one of: h200, h100, h100-pcie, h20, a100, l40s"),
            (["--model-device", "h20", "--threads", 2], "--threads: got it together with --model-device, which runs nothing"),
            (["--model-device", "h20", "--seconds", 2], "--seconds: got it together with --model-device, which runs nothing"),
            (["--model-device", "h20", "--dtype", "fp32"], "--dtype: got 'fp32' together with --model-device; want bf16"),
        ):  # fmt: skip
            with self.subTest(flags=flags):
                self.assertIn(text, self.refused("bench", "decode", *flags))

    def test_a_shape_of_many_heads_is_checked_on_some_of_them(self):
        document = self.json_of("bench", "decode", "--batch", 1, "--heads-q", 128, "--seq-k", 16384, "--seconds", 1)
        self.assertRegex(document["rows"][0]["check"], r"1 of 1 requests, \d\d of 128 heads compared")

    def test_few_repeats_are_admitted(self):
        text = self.right("bench", "decode", "--backend", "reference", "--seq-k", 512, "--seconds", 0.001)
        self.assertRegex(text, r"note: b 8.*: 1 repeats instead of 20, because --seconds was used up")

    def test_csv_says_what_the_json_says(self):
        path = self.folder / "rows.csv"
        rows = self.json_of("bench", "decode", *SMALL, "--csv", path)["rows"]
        with open(path, newline="", encoding="utf-8") as file:
            read = list(csv.DictReader(file))
        self.assertEqual(len(read), len(rows))
        for from_csv, from_json in zip(read, rows):
            self.assertEqual(list(from_csv), list(ROW))
            for key, value in from_json.items():
                self.assertEqual(from_csv[key], value if isinstance(value, str) else json.dumps(value), key)

    def drawing(self, path):
        """Marker count and texts of a plot, whose every coordinate lies on the canvas."""
        root = xml.etree.ElementTree.parse(path).getroot()
        self.assertEqual(root.tag, SVG + "svg")
        limits = {"x": float(root.get("width")), "y": float(root.get("height"))}
        for element in root.iter():
            for name in ("x", "y", "x1", "x2", "y1", "y2", "cx", "cy"):
                if element.get(name) is not None:
                    self.assertTrue(0 <= float(element.get(name)) <= limits[name.strip("c12")], element.attrib)
            for pair in (element.get("points") or "").split():
                x, y = map(float, pair.split(","))
                self.assertTrue(0 <= x <= limits["x"] and 0 <= y <= limits["y"], pair)
        texts = [element.text for element in root.iter(SVG + "text")]
        return len(list(root.iter(SVG + "circle"))), texts

    def test_plots_of_the_length_set(self):
        plot, roofline = self.folder / "plot.svg", self.folder / "roofline.svg"
        rows = self.json_of("bench", "decode", "--set", "lengths", "--seconds", 0.2, "--plot", plot, "--roofline",
                            roofline)["rows"]
        self.assertEqual([row["seq_k"] for row in rows], [512 * 2**i for i in range(8)])
        self.assertEqual({(row["batch"], row["heads_q"]) for row in rows}, {(1, 16)})
        markers, texts = self.drawing(plot)
        self.assertEqual(markers, len(rows) + 1)  # and one in the legend
        for text in ("GB/s", "512", "64k", "b 1, h_q 16", f"read loop: {rows[0]['peak_gbps']:.1f} GB/s"):
            self.assertIn(text, texts)
        self.assertTrue(any(text.startswith("cached tokens of a request") for text in texts), texts)
        markers, texts = self.drawing(roofline)
        self.assertEqual(markers, len(rows) + 1)
        self.assertIn("GFLOP/s", texts)
        self.assertIn("arithmetic intensity, flop/B", texts)
        self.assertTrue(any(re.match(r"b 1, h_q 16: \d+-\d+ % of roof", text) for text in texts), texts)

    def test_a_wrong_result_is_not_timed(self):
        path, plot = self.folder / "wrong.json", self.folder / "plot.svg"
        done = run("bench", "decode", *SMALL, "--inject-error", 0.5, "--json", path, "--plot", plot)
        self.assertEqual((done.returncode, done.stderr), (1, ""))
        self.assertIn("WRONG, not timed: b 2, s_q 1", done.stdout)
        (row,) = json.loads(path.read_text())["rows"]
        self.assertEqual((row["right"], row["time_us"], row["repeats"], row["gbps"]), (False, 0, 0, 0))
        self.assertEqual(self.drawing(plot)[0], 0)

    def test_the_progress_bar_needs_a_terminal(self):
        """Its absence elsewhere is what `right` checks everywhere."""
        terminal, end = pty.openpty()
        done = subprocess.run([PROGRAM, "bench", "decode", "--seq-k", "512"], stdout=subprocess.PIPE, stderr=end,
                              timeout=500, check=True)
        os.close(end)
        drawn = os.read(terminal, 65536).decode()
        os.close(terminal)
        self.assertRegex(drawn, r"\[#+\] 1 of 1  ceilings")
        self.assertTrue(drawn.endswith("\r\x1b[K"), repr(drawn))
        self.assertNotIn(b"\x1b", done.stdout)


if __name__ == "__main__":
    unittest.main()
