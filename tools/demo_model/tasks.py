"""Questions with checkable answers for the demonstration model: each needs attention to be right.

Every task draws a (question, answer) pair from a random.Random. `far` asks for longer questions, past the model's original
context, where YaRN's stretched frequencies act.
"""

NAMES = (
    "amber basil cedar delta ember fable grove hazel ivory jade kestrel lotus maple nectar olive pearl quartz raven "
    "sable topaz umber violet willow yarrow zephyr anchor beacon candle dagger engine falcon garnet harbor island "
    "jasper kettle lantern marble needle orchid pepper quiver ribbon saddle thistle urchin velvet walnut"
).split()
SYLLABLES = "ba ce di fo gu ha ki lo mu ne pa ri so tu va we xi yo za".split()


def word(random):
    return "".join(random.choice(SYLLABLES) for _ in range(random.randint(2, 3)))


def code(random):
    return str(random.randint(1000, 9999))


def recall(random, far=False):
    """A value named far back: one of several codes, with text of the same kind between."""
    names = random.sample(NAMES, random.randint(2, 16))
    if far:
        names = [f"{a} {b}" for a, b in zip(random.choices(NAMES, k=110), random.choices(NAMES, k=110))]
        names = list(dict.fromkeys(names))[: random.randint(40, 105)]
    codes = {name: code(random) for name in names}
    facts = " ".join(f"The code of {name} is {codes[name]}." for name in names)
    asked = random.choice(names[: len(names) // 3 + 1] if far else names)
    return f"{facts} What is the code of {asked}?", codes[asked]


def copying(random, far=False):
    words = [word(random) for _ in range(random.randint(16, 24) if far else random.randint(2, 10))]
    return "Repeat: " + " ".join(words), " ".join(words)


def counting(random, far=False):
    first = random.randint(1, 90)
    last = first + random.randint(2, 12)
    return f"Count from {first} to {last}.", " ".join(map(str, range(first, last + 1)))


def sorting(random, far=False):
    numbers = random.sample(range(10, 100), random.randint(2, 6))
    return "Sort: " + " ".join(map(str, numbers)), " ".join(map(str, sorted(numbers)))


def sums(random, far=False):
    a, b = random.randint(1, 99), random.randint(1, 99)
    return f"What is {a} + {b}?", str(a + b)


TASKS = {"recall": recall, "copying": copying, "counting": counting, "sorting": sorting, "sums": sums}
# Shares of the training questions; recall and copying are what attention is for.
SHARES = {"recall": 0.4, "copying": 0.25, "counting": 0.1, "sorting": 0.15, "sums": 0.1}


def chat(question, answer=""):
    """DeepSeek-V2's chat format without its special tokens."""
    return f"User: {question}\n\nAssistant:" + (f" {answer}" if answer else "")


def draw(random, far_share=0.15):
    """(task, question, answer)."""
    task = random.choices(list(SHARES), SHARES.values())[0]
    question, answer = TASKS[task](random, far=random.random() < far_share)
    return task, question, answer
