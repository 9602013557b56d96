"""flashmla chat: turns on standard input, /reset and /exit, a conversation that grows too long, Ctrl-C."""

import signal
import subprocess
import unittest

from program import DEMO_MODEL, FIRST_LINE, PROGRAM, ProgramTest, tiny_config

STATISTICS = r"\(\d+ tokens in \d+\.\d\d s, \d+\.\d tok/s\)\n"


def chat(turns, *arguments):
    return subprocess.run([PROGRAM, "chat", "--model", DEMO_MODEL, *map(str, arguments)], input=turns,
                          capture_output=True, text=True, timeout=500, check=False)


def start():
    child = subprocess.Popen([PROGRAM, "chat", "--model", DEMO_MODEL, "--ignore-eos", "--max-tokens", "1500"],
                             stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    return child, child.stdout.readline()


class Chat(ProgramTest):
    def test_turns(self):
        done = chat("What is 17 + 25?\n\n/reset\nCount from 5 to 9.\n/exit\nWhat is 1 + 1?\n")
        self.assertEqual(done.returncode, 0, done.stderr)
        first, rest = done.stdout.split("\n", 1)
        self.assertRegex(first, FIRST_LINE)
        self.assertEqual(rest, ">  42\n> > >  5 6 7 8 9\n> \n")
        self.assertRegex(done.stderr, f"^({STATISTICS}){{2}}$")

    def test_the_end_of_the_input_ends_it(self):
        done = chat("What is 17 + 25?\nSort: 3 1 2")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertTrue(done.stdout.endswith("\n> \n"), done.stdout)
        self.assertEqual(len(done.stderr.splitlines()), 2)

    def test_earlier_turns_are_part_of_the_prompt(self):
        turn = "Sort: 40 12 33\n"
        done = chat(turn + turn + "/reset\n" + turn, "--max-model-len", 32)  # one turn needs 26, two 42
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(done.stdout.count(" 12 33 40\n"), 2, done.stdout)
        self.assertRegex(done.stderr, f"^{STATISTICS}flashmla: prompt: got \\d+; want fewer tokens than max-model-len = 32; "
                                      f"/reset forgets the conversation\n{STATISTICS}$")

    def test_a_turn_that_did_not_fit_is_forgotten(self):
        done = chat("Repeat: " + "kilo wexi gubaso tuce " * 20 + "\nWhat is 17 + 25?\n", "--max-model-len", 64)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn(">  42\n", done.stdout)

    def test_the_system_message_comes_first(self):
        self.assertIn("prompt: got", chat("What is 1 + 1?\n", "--max-model-len", 48, "--system", "word " * 50).stderr)
        self.assertIn("prompt: got", chat("/reset\nWhat is 1 + 1?\n", "--max-model-len", 48, "--system",
                                          "word " * 50).stderr)

    def test_what_is_refused(self):
        self.assertIn("top_p: got 0.000000; want above 0", self.refused_after_load("--top-p", 0))
        self.assertIn("got '--prompt'; want one of: --help, --model", self.refused("chat", "--model", DEMO_MODEL, "--prompt"))
        self.assertIn("/no/such", self.refused("chat", "--model", "/no/such/model"))
        self.assertIn("--model: got a model without a tokenizer",
                      self.refused("chat", "--model", tiny_config(self.folder), "--random-weights", 1))

    def refused_after_load(self, *arguments):
        done = chat("What is 1 + 1?\n", *arguments)
        self.assertEqual((done.returncode, done.stdout), (2, ""), done)
        return done.stderr

    def test_ctrl_c_at_the_prompt(self):
        child, _ = start()
        with child:
            self.assertEqual(child.stdout.read(2), "> ")
            child.send_signal(signal.SIGINT)
            text, errors = child.communicate(timeout=60)
        self.assertEqual((child.returncode, text, errors), (130, "\n", ""))

    def test_ctrl_c_in_an_answer(self):
        child, _ = start()
        with child:
            child.stdin.write("What is 17 + 25?\n")
            child.stdin.flush()
            self.assertEqual(child.stdout.read(3), ">  ")
            child.send_signal(signal.SIGINT)
            _, errors = child.communicate(timeout=60)
        self.assertEqual(child.returncode, 130)
        self.assertRegex(errors, f"^{STATISTICS}$")
        self.assertNotIn("(1500 tokens", errors)


if __name__ == "__main__":
    unittest.main()
