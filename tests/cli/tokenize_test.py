"""flashmla tokenize: text to ids and back, the chat prompt, and what it refuses."""

import pathlib
import subprocess
import unittest

import program

FIXTURES = pathlib.Path(__file__).resolve().parents[1] / "fixtures" / "tokenizers"
TEXT = "Attention! 注意力 1234 👍\r\n  e\u0301 \x00end "


def run(data, *arguments):
    command = [program.PROGRAM, "tokenize", *map(str, arguments)]
    return subprocess.run(command, input=data, capture_output=True, timeout=500, check=False)


class Tokenize(unittest.TestCase):
    def right(self, data, *arguments):
        done = run(data, *arguments)
        self.assertEqual((done.returncode, done.stderr), (0, b""), done)
        return done.stdout

    def refused(self, data, *arguments):
        done = run(data, *arguments)
        self.assertEqual((done.returncode, done.stdout), (2, b""), done)
        self.assertRegex(done.stderr.decode(), r"^flashmla: .*\nTry 'flashmla[a-z ]* --help'\.\n$")
        return done.stderr.decode()

    def test_there_and_back(self):
        for name, bos in (("v2", True), ("v3", False)):
            with self.subTest(name):
                ids = self.right(TEXT.encode(), "--model", FIXTURES / name)
                self.assertRegex(ids, rb"^\d+( \d+)*\n$")
                self.assertEqual(ids.startswith(b"700 "), bos)
                text = self.right(ids, "--model", FIXTURES / name, "--decode", "--skip-special").decode()
                self.assertEqual(text, TEXT)
                plain = self.right(TEXT.encode(), "--model", FIXTURES / name, "--no-bos")
                self.assertEqual(self.right(plain, "--model", FIXTURES / name, "--decode").decode(), TEXT)

    def test_ids_as_python_prints_them(self):
        ids = self.right(b"some text", "--model", FIXTURES / "v3").split()
        listed = repr([int(number) for number in ids]).encode()
        self.assertEqual(self.right(listed, "--model", FIXTURES / "v3", "--decode"), b"some text")

    def test_invalid_bytes(self):
        data = b"a\xe4\xb8b\xff"
        ids = self.right(data, "--model", FIXTURES / "v3")
        self.assertEqual(ids, self.right(data.decode(errors="replace").encode(), "--model", FIXTURES / "v3"))

    def test_chat(self):
        ids = self.right(b"hi", "--model", FIXTURES / "v2", "--chat")
        text = self.right(ids, "--model", FIXTURES / "v2", "--decode").decode()
        self.assertEqual(text, "<｜begin▁of▁sentence｜>User: hi\n\nAssistant:")

    def test_pieces(self):
        lines = self.right("a\\ é\n".encode(), "--model", FIXTURES / "v3", "--pieces").decode().splitlines()
        self.assertEqual("".join(line.split("\t", 1)[1] for line in lines), r"a\\ \xc3\xa9\x0a")

    def test_what_is_refused(self):
        model = FIXTURES / "v3"
        self.assertIn("--model", self.refused(b""))
        self.assertIn("/no/such", self.refused(b"", "--model", "/no/such/folder"))
        self.assertIn("standard input: got 'x1'", self.refused(b"12 x1", "--model", model, "--decode"))
        self.assertIn("standard input: got '-1'", self.refused(b"-1", "--model", model, "--decode"))
        self.assertIn("ids[1]: got 99999", self.refused(b"1 99999", "--model", model, "--decode"))
        self.assertIn("--decode: got --chat", self.refused(b"1", "--model", model, "--decode", "--chat"))
        self.assertIn("--skip-special: want --decode", self.refused(b"1", "--model", model, "--skip-special"))


if __name__ == "__main__":
    unittest.main()
