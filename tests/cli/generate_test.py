"""flashmla generate on the demonstration model: answers, flags, files, errors, Ctrl-C."""

import json
import os
import signal
import subprocess
import unittest

from program import DEMO_MODEL, FIRST_LINE, PROGRAM, ProgramTest, run, tiny_config

SUM = "What is 17 + 25?"
COUNT = "Count from 5 to 14."
LAST_LINE = r"Generated {} tokens in \d+\.\d\d s \(\d+\.\d tok/s\)"


class Generate(ProgramTest):
    def generate(self, *arguments):
        """The lines of a right run."""
        lines = self.right("generate", "--model", DEMO_MODEL, *arguments).split("\n")
        self.assertEqual(lines.pop(), "")
        return lines

    def answers(self, *arguments):
        return self.json_of("generate", "--model", DEMO_MODEL, *arguments)["answers"]

    def text(self, *arguments):
        (answer,) = self.answers(*arguments)
        return answer["text"]

    def token_count(self, text, *arguments):
        done = subprocess.run([PROGRAM, "tokenize", "--model", DEMO_MODEL, *arguments], input=text, capture_output=True,
                              text=True, timeout=500, check=True)
        return len(done.stdout.split())

    def test_one_answer_between_two_lines(self):
        first, answer, last = self.generate("--prompt", SUM)
        self.assertRegex(first, FIRST_LINE)
        self.assertEqual(answer, " 42")
        (tokens,) = [answer["tokens"] for answer in self.answers("--prompt", SUM)]
        self.assertRegex(last, f"^{LAST_LINE.format(len(tokens))}$")

    def test_several_prompts_are_one_batch(self):
        first, *lines, last = self.generate("--prompt", SUM, "--prompt", "Sort: 40 12 33", "--max-num-seqs", 1)
        self.assertRegex(first, FIRST_LINE)
        self.assertEqual(lines, [f"[1] {SUM}", " 42", "[2] Sort: 40 12 33", " 12 33 40"])
        self.assertRegex(last, f"^{LAST_LINE.format('[0-9]+')}$")

    def test_answers_stand_below_their_prompts(self):
        brackets, sort = "[Sort: 40, 12, 33]", "Sort: 40 12 33"
        _, *lines, _ = self.generate("--prompt-tokens", 5, "--prompt", brackets, "--prompt", sort, "--max-tokens", 3,
                                     "--stop", " 12", "--stop", "[4, 4]")
        self.assertEqual(lines[0], f"[1] {brackets}")
        second = lines.index(f"[2] {sort}")
        self.assertEqual(lines[second + 1], "")  # the first word is the stop text

    def test_back_ends_and_forms(self):
        for arguments in (["--backend", "reference"], ["--attention-form", "mha"], ["--dtype", "fp32"],
                          ["--quantization", "int8"], ["--block-size", 7], ["--threads", 1]):
            with self.subTest(arguments=arguments):
                first, answer, _ = self.generate("--prompt", SUM, *arguments)
                self.assertEqual(answer, " 42")
                self.assertIn(f"Using {'reference' if 'reference' in arguments else 'cpu'} MLA back end (", first)

    def test_json(self):
        document = self.json_of("generate", "--model", DEMO_MODEL, "--prompt", SUM, "--prompt", COUNT)
        self.assertEqual(document["model"], str(DEMO_MODEL))
        short, long = document["answers"]
        self.assertEqual((short["text"], short["finish_reason"]), (" 42", "stop"))
        self.assertEqual(long["text"], " 5 6 7 8 9 10 11 12 13 14")
        self.assertEqual(short["prompt_tokens"], self.token_count(SUM, "--chat"))
        self.assertEqual(document["generated_tokens"], len(short["tokens"]) + len(long["tokens"]))
        self.assertGreater(document["first_token_seconds"], 0)
        self.assertGreater(document["seconds"], document["first_token_seconds"])
        self.assertAlmostEqual(document["tokens_per_second"] * document["seconds"], document["generated_tokens"], 3)

    def test_raw_prompts_stay_as_they_are(self):
        (answer,) = self.answers("--prompt", SUM, "--raw", "--max-tokens", 1)
        self.assertEqual(answer["prompt_tokens"], self.token_count(SUM))

    def test_what_ends_an_answer(self):
        (seven,) = [int(word) for word in subprocess.run(
            [PROGRAM, "tokenize", "--model", DEMO_MODEL, "--no-bos"], input="7", capture_output=True, text=True,
            timeout=500, check=True).stdout.split()]
        for arguments, text, reason in [
            ([], " 5 6 7 8 9 10 11 12 13 14", "stop"),
            (["--stop", "9 1"], " 5 6 7 8 ", "stop"),
            (["--stop", "9 1", "--stop", "6"], " 5 ", "stop"),
            (["--stop", "8 9 11"], " 5 6 7 8 9 10 11 12 13 14", "stop"),
            (["--stop-token-ids", seven], " 5 6 ", "stop"),
            (["--stop-token-ids", f"{seven},1"], " 5 6 ", "stop"),
            (["--max-tokens", 4], " 5 6", "length"),
        ]:
            with self.subTest(arguments=arguments):
                (answer,) = self.answers("--prompt", COUNT, *arguments)
                self.assertEqual((answer["text"], answer["finish_reason"]), (text, reason))
        self.assertEqual(len(self.answers("--prompt", COUNT, "--ignore-eos", "--max-tokens", 70)[0]["tokens"]), 70)

    def test_a_seed_repeats_its_answer(self):
        def tokens(*arguments):
            return self.answers("--prompt", SUM, "--ignore-eos", "--max-tokens", 40, *arguments)[0]["tokens"]

        hot = ["--temperature", 3, "--seed", 7]
        first = tokens(*hot)
        self.assertEqual(tokens(*hot), first)
        self.assertNotEqual(tokens("--temperature", 3, "--seed", 8), first)
        greedy = tokens()
        self.assertNotEqual(first, greedy)
        self.assertEqual(tokens(*hot, "--top-k", 1), greedy)
        self.assertEqual(tokens(*hot, "--top-p", 1e-9), greedy)

    def test_the_warm_up_does_not_count(self):
        first, answer, last = self.generate("--prompt", SUM, "--warmup", "--max-tokens", 2)
        self.assertRegex(first, FIRST_LINE)
        self.assertRegex(last, f"^{LAST_LINE.format(2)}$")
        self.assertEqual(answer, self.generate("--prompt", SUM, "--max-tokens", 2)[1])

    def test_compare(self):
        row = r"^{} +(\d+) tokens in +\d+\.\d\d s +\d+\.\d tok/s  {}$"
        lines = self.generate("--prompt", SUM, "--prompt", COUNT, "--compare", "cpu:mqa,cpu:mha,reference", "--warmup")
        self.assertEqual(len(lines), 3)
        for line, name, verdict in zip(lines, ("cpu:mqa", "cpu:mha", "reference"),
                                       ("compared with", "same tokens", "same tokens")):
            self.assertRegex(line, row.format(name, verdict))
        # At this temperature all tokens are nearly alike, and the last bits decide.
        done = run("generate", "--model", DEMO_MODEL, "--prompt", SUM, "--compare", "cpu:mqa,cpu:mqa,cpu:mha",
                   "--temperature", 50, "--ignore-eos", "--max-tokens", 150)
        self.assertEqual(done.returncode, 1, done.stdout + done.stderr)
        verdicts = [line.split("tok/s")[1].strip() for line in done.stdout.splitlines()]
        self.assertEqual(verdicts, ["compared with", "same tokens", "DIFFERENT tokens"])

    def test_random_weights_need_no_checkpoint(self):
        config = tiny_config(self.folder)
        arguments = ["generate", "--model", config, "--random-weights", 1, "--max-tokens", 5, "--ignore-eos"]
        lines = self.right(*arguments, "--prompt-tokens", 8).splitlines()
        self.assertRegex(lines[-1], f"^{LAST_LINE.format(5)}$")
        self.assertIn("--prompt: got text for a model without a tokenizer; want --prompt-tokens N",
                      self.refused(*arguments, "--prompt", SUM))

    def test_what_does_not_fit_names_its_flag(self):
        model = ["generate", "--model", DEMO_MODEL, "--prompt", COUNT]
        self.assertRegex(self.refused(*model, "--max-model-len", 8),
                         r"prompt: got \d+; want fewer tokens than max-model-len = 8\n")
        self.assertIn("--max-model-len: got 4096; want at most the model's max_position_embeddings, 2048\n",
                      self.refused(*model, "--max-model-len", 4096))
        config = tiny_config(self.folder, max_position_embeddings=1 << 30)
        self.assertRegex(self.refused("generate", "--model", config, "--random-weights", 1, "--prompt-tokens", 8,
                                      "--dtype", "fp32", "--max-model-len", 1 << 30, "--block-size", 128),
                         r"cache: 8388608 pages of 128 tokens need 515\.40 GB, this machine has \d+\.\d\d GB to give; "
                         r"lower --max-model-len\n")

    def test_what_is_refused(self):
        for arguments, text in [
            ([], "--prompt: got none; want at least one (or --prompt-tokens N)"),
            (["--prompt", "x", "--backend", "cuda"], "--backend: got 'cuda'; want one of: reference, cpu"),
            (["--prompt", "x", "--attention-form", "mla"], "--attention-form: got 'mla'; want one of: auto, mqa, mha"),
            (["--prompt", "x", "--dtype", "fp8"], "--dtype: got 'fp8'; want one of: auto, bf16, fp32"),
            (["--prompt", "x", "--quantization", "int4"], "--quantization: got 'int4'; want one of: int8"),
            (["--prompt", "x", "--temperature", "-1"], "--temperature: got '-1'; want a number, 0 .. 100"),
            (["--prompt", "x", "--temperature", "nan"], "--temperature: got 'nan'; want a number"),
            (["--prompt", "x", "--top-p", "0"], "top_p: got 0.000000; want above 0, at most 1"),
            (["--prompt", "x", "--top-p", "1.5"], "--top-p: got '1.5'; want a number, 0 .. 1"),
            (["--prompt", "x", "--top-k", "-1"], "--top-k: got '-1'; want an integer, 0 .."),
            (["--prompt", "x", "--max-tokens", "0"], "--max-tokens: got '0'; want an integer, 1 .."),
            (["--prompt", "x", "--stop-token-ids", "5,x"], "--stop-token-ids: got 'x'; want an integer"),
            (["--prompt", "x", "--block-size", "0"], "--block-size: got '0'; want an integer, 1 .. 4096"),
            (["--prompt", "x", "--max-model-len", "1"], "--max-model-len: got '1'; want an integer, 2 .."),
            (["--prompt", "x", "--compare", "cpu:mqa,gpu"], "backend: got 'gpu'; want one of: "),
            (["--prompt", "x", "--compare", "cpu:"], "attention-form: got ''; want one of: auto, mqa, mha"),
            (["--prompt", "x", "--compare", "cpu,"], "--compare: got an empty entry; want BACKEND or BACKEND:FORM in each"),
            (["--prompt", "x", "--compare", "cpu", "--json", "f"], "--json: got it together with --compare"),
            (["--prompt", "x", "--compare", "cpu", "--backend", "cpu"], "--backend: got it together with --compare"),
            (["--prompt", "x", "--compare", "cpu", "--attention-form", "mha"],
             "--attention-form: got it together with --compare"),
            (["--prompt", "x", "--json", "/no/such/folder/f"], "--json: got '/no/such/folder/f', whose folder does not"),
            (["--prompt", "x", "y"], "got 'y'; want one of: --help, --model"),
            (["--prompts", "x"], "got '--prompts'; want one of: --help, --model"),
        ]:
            with self.subTest(arguments=arguments):
                self.assertIn(text, self.refused("generate", "--model", DEMO_MODEL, *arguments))
        self.assertIn("--model", self.refused("generate", "--prompt", "x"))

    def test_a_model_that_is_not_there_says_how_to_get_it(self):
        hidden = {"HOME": str(self.folder), "HF_HUB_CACHE": "", "HUGGINGFACE_HUB_CACHE": "", "HF_HOME": "",
                  "XDG_CACHE_HOME": "", "MODELSCOPE_CACHE": ""}
        done = subprocess.run([PROGRAM, "generate", "--model", "deepseek-ai/DeepSeek-V2-Lite-Chat", "--prompt", "x"],
                              capture_output=True, text=True, timeout=500, check=False, env={**os.environ, **hidden})
        self.assertEqual((done.returncode, done.stdout), (2, ""))
        self.assertIn("\n  huggingface-cli download deepseek-ai/DeepSeek-V2-Lite-Chat\n", done.stderr)
        self.assertIn("\n  modelscope download --model deepseek-ai/DeepSeek-V2-Lite-Chat\n", done.stderr)

    def test_ctrl_c_ends_the_answer(self):
        path = self.folder / "out.json"
        with subprocess.Popen([PROGRAM, "generate", "--model", DEMO_MODEL, "--prompt", SUM, "--ignore-eos", "--max-tokens",
                               "2000", "--json", path], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
            first = child.stdout.readline()  # comes with the first token
            child.send_signal(signal.SIGINT)
            rest, errors = child.communicate(timeout=60)
        self.assertEqual((child.returncode, errors), (130, ""))
        self.assertRegex(first, FIRST_LINE)
        self.assertRegex(rest, LAST_LINE.format("[0-9]+") + "\n$")
        document = json.loads(path.read_text())
        (answer,) = document["answers"]
        self.assertEqual(answer["finish_reason"], "interrupted")
        self.assertLess(len(answer["tokens"]), 2000)
        self.assertIn(f"\nGenerated {len(answer['tokens'])} tokens in ", rest)

    def test_ctrl_c_ends_a_comparison(self):
        with subprocess.Popen([PROGRAM, "generate", "--model", DEMO_MODEL, "--prompt", SUM, "--ignore-eos", "--max-tokens",
                               "2000", "--compare", "reference,cpu"], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                              text=True) as child:
            with self.assertRaises(subprocess.TimeoutExpired):
                child.wait(2)
            child.send_signal(signal.SIGINT)
            text, errors = child.communicate(timeout=60)
        self.assertEqual((child.returncode, text, errors), (130, "", ""))


if __name__ == "__main__":
    unittest.main()
