"""`flashmla bench compare`: what is noise and what is not; and the hand-over of `bench decode --peers` to Python."""

import json
import os
import subprocess
import sys
import unittest

from program import PROGRAM, ProgramTest, run


def row(time_us, spread=0.01, **fields):
    shape = {"library": "flashmla", "name": "b1 h16 512", "batch": 1, "heads_q": 16, "seq_k": 512, "kernel": "k"}
    times = {"time_us": time_us, "time_us_p10": time_us * (1 - spread), "time_us_p90": time_us * (1 + spread)}
    return {**shape, **times, **fields}


class Compare(ProgramTest):
    def file(self, name, *rows, **header):
        path = self.folder / name
        path.write_text(json.dumps({**header, "rows": list(rows)}))
        return path

    def verdict(self, before, after, *flags):
        done = run("bench", "compare", self.file("a.json", before), self.file("b.json", after), *flags)
        line = next(line for line in done.stdout.splitlines() if line.startswith("flashmla"))
        return line.split()[-1], done.returncode

    def test_real_differences_and_noise(self):
        self.assertEqual(self.verdict(row(10), row(10)), ("noise", 0))
        self.assertEqual(self.verdict(row(10), row(9)), ("faster", 0))
        self.assertEqual(self.verdict(row(10), row(11)), ("slower", 1))
        self.assertEqual(self.verdict(row(10, spread=0.2), row(11)), ("noise", 0))  # the spreads touch
        self.assertEqual(self.verdict(row(10, spread=0.001), row(10.15, spread=0.001)), ("noise", 0))  # below two percent
        self.assertEqual(self.verdict(row(10, spread=0.001), row(10.15, spread=0.001), "--least", 1), ("slower", 1))

    def test_another_kernel_of_the_same_shape_is_compared(self):
        self.assertEqual(self.verdict(row(10, kernel="old"), row(5, kernel="new")), ("faster", 0))

    def test_the_older_names_of_the_spread(self):
        old = {"library": "flashmla", "case": "x", "time_us": 10, "time_us_low": 8, "time_us_high": 12}
        self.assertEqual(self.verdict(old, {**old, "time_us": 11}), ("noise", 0))

    def test_rows_are_paired_by_library_and_shape(self):
        torch = [row(20, library="torch", kernel=kernel) for kernel in ("matmul", "sdpa")]
        before = self.file("a.json", row(10), *torch, row(1, batch=2), ceilings={"read_gbps": 4000})
        after = self.file("b.json", torch[0], row(30, library="torch", kernel="sdpa"), row(5), ceilings={"read_gbps": 4400})
        done = run("bench", "compare", before, after)
        self.assertEqual(done.returncode, 1)
        self.assertIn("1 faster, 1 slower, 1 within noise; 1 only before, 0 only after", done.stdout)
        self.assertIn("ceiling read_gbps: 4000 -> 4400 (+10.0 %)", done.stdout)
        self.assertRegex(done.stdout, r"kernel=sdpa +20.00 us +30.00 us +\+50.0 % +slower")

    def test_bad_files(self):
        good = self.file("good.json", row(10))
        no_rows = self.folder / "bad.json"
        no_rows.write_text("{}")
        self.assertIn("bad.json'; want a results file of flashmla bench", self.refused("bench", "compare", good, no_rows))
        self.assertIn("no.json'; want a results file", self.refused("bench", "compare", good, self.folder / "no.json"))
        other = self.file("other.json", row(10, batch=9))
        self.assertIn("no row of the same library and shape", self.refused("bench", "compare", good, other))


class Peers(ProgramTest):
    def with_python(self, python, *arguments, **environment):
        environment = {**os.environ, "FLASHMLA_PYTHON": str(python), **environment}
        return subprocess.run([PROGRAM, *arguments], capture_output=True, text=True, timeout=60, check=False, env=environment)

    def test_flags_arrive_in_python(self):
        package = self.folder / "flashmla" / "peers"
        package.mkdir(parents=True)
        (package.parent / "__init__.py").touch()
        (package / "__init__.py").touch()
        (package / "cli.py").write_text("def main(arguments):\n    print(arguments)\n    return 7\n")
        done = self.with_python(
            sys.executable, "bench", "decode", "--set", "x y", "--peers=all", "--hot", PYTHONPATH=str(self.folder)
        )
        self.assertEqual((done.returncode, done.stdout), (7, "['--set', 'x y', '--peers=all', '--hot']\n"))

    def test_a_python_without_the_package_is_named(self):
        done = self.with_python(sys.executable, "bench", "decode", "--peers", "all", PYTHONPATH="", PYTHONNOUSERSITE="1")
        if done.returncode != 0:  # the Python of this test may have it
            self.assertEqual(done.returncode, 2)
            self.assertIn("cannot import what it needs", done.stderr)
            self.assertIn("FLASHMLA_PYTHON", done.stderr)

    def test_no_python(self):
        done = self.with_python("/no/such/python", "bench", "decode", "--peers", "all")
        self.assertEqual(done.returncode, 2)
        self.assertIn("--peers: got the interpreter '/no/such/python', which cannot be run", done.stderr)


if __name__ == "__main__":
    unittest.main()
