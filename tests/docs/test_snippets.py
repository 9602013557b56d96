"""The README's snippets compile, run and give right results."""

import contextlib
import io
import os
import pathlib
import tempfile
import unittest

from documents import BUILD, ROOT, code_blocks, run, text_of

HERE = pathlib.Path(__file__).parent
STRICT = ["-Wall", "-Wextra", "-Werror"]


def snippet(language):
    found = [code for block, code in code_blocks(text_of("README.md")) if block == language]
    assert len(found) == 1, f"README.md has {len(found)} {language} blocks; want 1"
    return found[0]


class Compiled(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def shell(self, *arguments):
        answer = run([str(a) for a in arguments], cwd=self.folder)
        self.assertEqual(answer.returncode, 0, answer.stdout + answer.stderr)
        return answer.stdout

    def link_and_run(self, *inputs):
        library = BUILD / "src"
        include = f"-I{ROOT / 'include'}"
        self.shell(
            os.environ.get("CXX", "g++"), "-std=c++20", *STRICT, include, *inputs, HERE / "snippets" / "attend.cc",
            f"-L{library}", f"-Wl,-rpath,{library}", "-lflashmla", "-o", "attend",
        )  # fmt: skip
        self.assertIn("right", self.shell("./attend"))

    def test_cpp(self):
        (self.folder / "snippet.h").write_text(snippet("cpp"))
        self.link_and_run(f'-DSNIPPET="{self.folder / "snippet.h"}"')

    def test_c(self):
        (self.folder / "snippet.c").write_text(snippet("c"))
        self.shell(
            os.environ.get("CC", "gcc"), "-std=c99", "-pedantic", *STRICT, f"-I{ROOT / 'include'}", "-c", "snippet.c",
        )  # fmt: skip
        self.link_and_run("-DSNIPPET_IS_C", "snippet.o")


class Python(unittest.TestCase):
    def test_python(self):
        try:
            import flashmla  # noqa: F401
            import numpy as np
        except ImportError as missing:
            self.skipTest(f"needs the installed package and NumPy: {missing}")
        names = {}
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(snippet("python"), "README.md", "exec"), names)
        self.assertEqual(printed.getvalue(), "(2, 1, 16, 512) (2, 16, 1)\n")
        for request, length in enumerate(names["seq_lens"]):
            keys = names["kv_cache"][names["page_table"][request], :, 0].reshape(-1, 576)[:length].astype(np.float64)
            scores = names["q"][request, 0].astype(np.float64) @ keys.T * 0.1147213868
            weights = np.exp(scores - scores.max(axis=1, keepdims=True))
            want = weights @ keys[:, :512] / weights.sum(axis=1, keepdims=True)
            np.testing.assert_allclose(names["out"][request, 0], want, atol=1e-4)
            want_lse = np.log(weights.sum(axis=1)) + scores.max(axis=1)
            np.testing.assert_allclose(names["lse"][request, :, 0], want_lse, rtol=1e-5)


if __name__ == "__main__":
    unittest.main()
