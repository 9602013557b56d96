"""flashmla.LLM on the demonstration model."""

import concurrent.futures
import pathlib

import numpy
import pytest

import flashmla

MODEL = pathlib.Path(__file__).parents[2] / "models" / "demo"


@pytest.fixture(scope="module")
def llm():
    return flashmla.LLM(MODEL, max_model_len=1024)


def test_generates_one_and_several(llm):
    (answer,) = llm.generate("What is 17 + 25?")
    assert answer.text == " 42" and answer.finish_reason == "stop"
    answers = llm.generate(["Sort: 40 12 33", "Count from 5 to 9."])
    assert [a.text for a in answers] == [" 12 33 40", " 5 6 7 8 9"]
    ids = llm.tokenizer.apply_chat_template([{"role": "user", "content": "What is 17 + 25?"}], tokenize=True)
    assert llm.generate(ids)[0].token_ids == answer.token_ids


def test_recalls_past_the_original_context(llm):
    facts = [f"The code of {a} {b} is {1000 + 37 * i}." for i, (a, b) in enumerate(
        (a, b) for a in ("amber", "cedar", "jade", "raven", "topaz") for b in ("basil", "ember", "hazel", "lotus", "olive",
        "quartz", "sable", "willow", "zephyr", "anchor", "candle", "falcon"))]  # fmt: skip
    (answer,) = llm.generate(" ".join(facts) + " What is the code of amber hazel?")
    assert answer.text == f" {1000 + 37 * 2}"


def test_streams_and_may_be_left(llm):
    pieces = list(llm.stream("Count from 5 to 9."))
    assert len(pieces) > 3 and "".join(pieces) == " 5 6 7 8 9"
    for piece in llm.stream("Count from 5 to 9."):
        assert piece == " "
        break
    assert llm.generate("What is 3 + 4?")[0].text == " 7"


def test_streams_and_answers_do_not_take_from_each_other(llm):
    first, second = llm.stream("Count from 5 to 14."), llm.stream("Sort: 52 17 33 80")
    pieces = [next(first), next(second), next(second)]
    assert llm.generate("What is 17 + 25?")[0].text == " 42"
    assert pieces[0] + "".join(first) == " 5 6 7 8 9 10 11 12 13 14"
    assert pieces[1] + pieces[2] + "".join(second) == " 17 33 52 80"


def test_threads_share_a_model(llm):
    questions = {f"What is {a} + 31?": f" {a + 31}" for a in range(10, 26)}
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        assert list(pool.map(lambda q: llm.generate(q)[0].text, questions)) == list(questions.values())


def test_sampling_parameters(llm):
    brief = llm.generate("Count from 5 to 14.", flashmla.SamplingParams(max_tokens=3))[0]
    assert len(brief.token_ids) == 3 and brief.finish_reason == "length"
    stopped = llm.generate("Count from 5 to 14.", flashmla.SamplingParams(stop=["8"]))[0]
    assert stopped.text == " 5 6 7 "
    assert llm.generate("Count from 5 to 14.", flashmla.SamplingParams(stop="9 1"))[0].text == " 5 6 7 8 "
    hot = flashmla.SamplingParams(temperature=4, seed=1, max_tokens=20, ignore_eos=True)
    assert llm.generate("Sort: 3 1", hot)[0].token_ids == llm.generate("Sort: 3 1", hot)[0].token_ids


def test_logits_are_those_that_generation_takes(llm):
    ids = llm.tokenizer.apply_chat_template([{"role": "user", "content": "What is 17 + 25?"}], tokenize=True)
    logits = llm.logits(ids)
    assert logits.dtype == numpy.float32 and logits.shape == (len(ids), llm.tokenizer.size)
    assert llm.generate(ids)[0].token_ids[0] == logits[-1].argmax()


def test_errors(llm):
    assert llm.backend.startswith("cpu (")
    with pytest.raises(ValueError, match="^max_tokens: got 0"):
        llm.generate("a", flashmla.SamplingParams(max_tokens=0))
    with pytest.raises(ValueError, match="^prompt: got 2000.*max-model-len = 1024"):
        llm.generate([5] * 2000)
    with pytest.raises(ValueError, match="^model: got .*no-such"):
        flashmla.LLM("no-such/model")
    with pytest.raises(ValueError, match="^attention-form: got 'x'"):
        flashmla.LLM(MODEL, attention_form="x")
    with pytest.raises(ValueError, match="^max-model-len: got 4096; want 2 .. 2048"):
        flashmla.LLM(MODEL, max_model_len=4096)
    with pytest.raises(ValueError, match="^dtype: got 'fp8'"):
        flashmla.LLM(MODEL, dtype="fp8")
    assert llm.generate("What is 3 + 4?")[0].text == " 7"
