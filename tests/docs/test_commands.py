"""Every command and flag that a document names exists; quick ones run."""

import functools
import re
import shlex
import unittest

from documents import PROGRAM, ROOT, commands, documents, run, shell_lines, text_of

QUICK = ("flashmla info", "flashmla verify", "flashmla version", "flashmla --help", "./dev help")


@functools.cache
def help_of(subcommands):
    """Help text of `./dev` or of a flashmla subcommand; None where there is none."""
    if subcommands[0] == "./dev":
        return run([ROOT / "dev", "help"]).stdout
    answer = run([PROGRAM, *subcommands[1:], "--help"])
    # With an unknown subcommand, --help answers for the command above it.
    known = re.search(rf"^Usage: {re.escape(' '.join(subcommands))} ", answer.stdout, re.M)
    return answer.stdout if answer.returncode == 0 and known else None


def split(command):
    """('flashmla', 'bench', 'decode'), ['--json', ..]: the leading plain words, and the flags after them."""
    words = shlex.split(re.split(r"[|>&;]", command)[0])
    plain = []
    for word in words:
        if not re.fullmatch(r"\./dev|[a-z]+", word):
            break
        plain.append(word)
    flags = [word.split("=")[0] for word in words if word.startswith("--")]
    return tuple(plain), flags


def problems(command):
    subcommands, flags = split(command)
    text = help_of(subcommands)
    if text is None:
        return [f"{command}: no such subcommand"]
    if subcommands[0] == "./dev" and len(subcommands) > 1 and not re.search(rf"^  {subcommands[1]}\b", text, re.M):
        return [f"{command}: no such command of ./dev"]
    # In `./dev bench`, the flags are those of `flashmla bench`.
    if subcommands[:2] == ("./dev", "bench"):
        text += help_of(("flashmla", "bench", *(subcommands[2:] or ("decode",)))) or ""
    # With --peers, and in `./dev peers`, they are those of Python's part, whose own help needs torch.
    if subcommands[:2] == ("./dev", "peers") or "--peers" in flags:
        text += " ".join(["", *re.findall(r'"(--[a-z-]+)"', text_of("bench/peers/cli.py"))])
    return [f"{command}: no flag {flag}" for flag in flags if not re.search(rf"(^|[\s,\[]){flag}(?![\w-])", text)]


class Commands(unittest.TestCase):
    def test_every_named_command_and_flag_exists(self):
        named = [(document, command) for document in documents() for command in commands(document.read_text())]
        self.assertGreater(len(named), 15, "the check found hardly any command: is it still reading the documents?")
        found = [f"{document.name}: {p}" for document, command in named for p in problems(command)]
        self.assertEqual(found, [])

    def test_a_dead_command_is_seen(self):
        for command in ("./dev polish", "./dev test --fast", "flashmla dance", "flashmla verify --heads 3"):
            self.assertNotEqual(problems(command), [], command)

    def test_quick_commands_of_the_readme_run(self):
        quick = [line for line in shell_lines(text_of("README.md")) if line.startswith(QUICK)]
        self.assertTrue(quick)
        for command in quick:
            words = shlex.split(command)
            words[0] = str(PROGRAM) if words[0] == "flashmla" else str(ROOT / "dev")
            with self.subTest(command):
                answer = run(words, cwd=ROOT)
                self.assertEqual(answer.returncode, 0, answer.stdout + answer.stderr)


if __name__ == "__main__":
    unittest.main()
