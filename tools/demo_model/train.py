"""Trains the demonstration model and writes it as a checkpoint: minutes on one GPU (docs/running-models.md).

    bible -f gen1:1-rev22:21 > kjv.txt                  # Debian package bible-kjv: the King James Bible, public domain
    python tools/demo_model/train.py --text kjv.txt --out models/demo --minutes 9

Needs torch, tokenizers, safetensors and numpy. The batches are questions (tasks.py) in DeepSeek-V2's chat format, of which
only the answers count for the loss, and verses. Everything is drawn from --seed, but times out by the clock: another run
gives another model.
"""

import argparse
import json
import os
import random
import time

import numpy
import torch
from safetensors.torch import save_file
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

import tasks
from network import CONFIG, DeepseekV2

LENGTH = 2048  # tokens of a training sequence: four times the original context
BATCH = 24
BOS, EOS = "<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>"
# Where text is split before merging: digits one by one, letters with the space before them, all else by kind.
SPLITS = [r"\p{N}", r"[\r\n]+", r" ?[\p{L}\p{M}]+", r" ?[^\s\p{L}\p{M}\p{N}]+"]


def train_tokenizer(text, vocabulary):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in SPLITS]
        + [pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=vocabulary, special_tokens=[BOS, EOS],
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False)
    draw = random.Random(0)
    questions = [tasks.chat(question, answer) for _, question, answer in (tasks.draw(draw) for _ in range(20000))]
    tokenizer.train_from_iterator(text.splitlines() + questions, trainer)
    return tokenizer


class Sequences(torch.utils.data.IterableDataset):
    """Packed sequences: tokens [LENGTH + 1] and which of them count for the loss."""

    def __init__(self, tokenizer_json, text, seed):
        self.tokenizer_json, self.verses, self.seed = tokenizer_json, text.splitlines(), seed

    def __iter__(self):
        worker = torch.utils.data.get_worker_info()
        draw = random.Random(self.seed * 1000 + (worker.id if worker else 0))
        tokenizer = Tokenizer.from_str(self.tokenizer_json)
        bos, eos = tokenizer.token_to_id(BOS), tokenizer.token_to_id(EOS)
        ids, counts = [], []
        while True:
            while len(ids) <= LENGTH:
                if draw.random() < 0.1:  # some verses in a row
                    at = draw.randrange(len(self.verses) - 8)
                    tokens = [bos] + tokenizer.encode("\n".join(self.verses[at : at + draw.randint(1, 8)])).ids + [eos]
                    ids += tokens
                    counts += [1] * len(tokens)
                    continue
                _, question, answer = tasks.draw(draw)
                asked = [bos] + tokenizer.encode(tasks.chat(question)).ids
                answered = tokenizer.encode(" " + answer).ids + [eos]
                if len(asked) + len(answered) > LENGTH:
                    continue
                # A question may stand alone at the beginning, as it will when asked, or after others.
                ids += asked + answered
                counts += [0] * len(asked) + [1] * len(answered)
            yield numpy.array(ids[: LENGTH + 1], dtype=numpy.int64), numpy.array(counts[: LENGTH + 1], dtype=numpy.bool_)
            ids, counts = [], []


@torch.no_grad()
def answers_right(model, tokenizer, questions):
    """Share of questions answered exactly, by task, greedily, without a cache."""
    bos, eos = tokenizer.token_to_id(BOS), tokenizer.token_to_id(EOS)
    right = {}
    for task, question, answer in questions:
        want = tokenizer.encode(" " + answer).ids + [eos]
        prompt = [bos] + tokenizer.encode(tasks.chat(question)).ids
        # One pass with the right answer in place: greedy generation agrees when every token is the likeliest one.
        tokens = torch.tensor([prompt + want], device="cuda")
        with torch.autocast("cuda", torch.bfloat16):
            likeliest = model(tokens)[0].argmax(-1)[0]
        right.setdefault(task, []).append(likeliest[len(prompt) - 1 : -1].tolist() == want)
    return {task: sum(hits) / len(hits) for task, hits in right.items()}


def held_out(count):
    """Questions that training does not draw but by chance: a seed of their own. A quarter of recall is far."""
    draw = random.Random(20261130)
    shares = {"recall": 0.4, "copying": 0.3, "counting": 0.1, "sorting": 0.1, "sums": 0.1}
    questions = []
    for task, share in shares.items():
        for i in range(round(count * share)):
            question, answer = tasks.TASKS[task](draw, far=task == "recall" and i % 4 == 0)
            questions.append((task, question, answer))
    return questions


def train(model, loader, minutes, log):
    parameters = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(
        [dict(params=[p for p in parameters if p.dim() == 2], weight_decay=0.05),
         dict(params=[p for p in parameters if p.dim() != 2], weight_decay=0.0)],
        lr=1e-3, betas=(0.9, 0.98), fused=True)  # fmt: skip
    compiled = torch.compile(model)
    start, step, running = time.time(), 0, 0.0
    for tokens, counts in loader:
        done = (time.time() - start) / (minutes * 60)
        if done >= 1:
            break
        warm = min(1.0, (step + 1) / 300)
        for group in optimizer.param_groups:
            group["lr"] = 2e-3 * warm * min(1.0, max(0.02, 1.25 * (1 - done)))
        tokens, counts = tokens.cuda(non_blocking=True), counts.cuda(non_blocking=True)
        with torch.autocast("cuda", torch.bfloat16):
            logits, balance = compiled(tokens[:, :-1])
            losses = torch.nn.functional.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten(), reduction="none")
            weights = counts[:, 1:].flatten().float()
            loss = (losses * weights).sum() / weights.sum() + 0.001 * balance
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        step += 1
        if step % 250 == 0:
            log(f"step {step}, {time.time() - start:.0f} s, loss {loss.item():.4f}")
    return step


def export(model, tokenizer, config, folder, score):
    os.makedirs(folder, exist_ok=True)
    weights = {name: tensor.detach().to(torch.bfloat16).contiguous().cpu() for name, tensor in model.state_dict().items()}
    names = sorted(weights)
    shards = {}
    half, size = sum(w.numel() for w in weights.values()) / 2, 0
    for name in names:
        shards[name] = f"model-0000{1 if size < half else 2}-of-000002.safetensors"
        size += weights[name].numel()
    for shard in sorted(set(shards.values())):
        save_file({n: weights[n] for n in names if shards[n] == shard}, os.path.join(folder, shard), metadata={"format": "pt"})

    def write(name, value):
        with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
            json.dump(value, file, indent=1, ensure_ascii=False)
            file.write("\n")

    write("config.json", config)
    write("model.safetensors.index.json", dict(metadata=dict(total_size=2 * size), weight_map=shards))
    write("tokenizer_config.json", dict(
        add_bos_token=True, add_eos_token=False, bos_token=BOS, eos_token=EOS,
        chat_template="{{ bos_token }}{% for message in messages %}{% if message['role'] == 'user' %}{{ 'User: ' + message['content'] + '\n\n' }}"
        "{% elif message['role'] == 'assistant' %}{{ 'Assistant: ' + message['content'] + eos_token }}{% else %}{{ message['content'] + '\n\n' }}"
        "{% endif %}{% endfor %}{% if add_generation_prompt %}{{ 'Assistant:' }}{% endif %}",
    ))  # fmt: skip
    tokenizer.save(os.path.join(folder, "tokenizer.json"))
    write("score.json", score)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", required=True, help="plain text, a paragraph a line")
    parser.add_argument("--out", required=True, help="folder for the checkpoint")
    parser.add_argument("--questions", help="file for the held-out questions")
    parser.add_argument("--minutes", type=float, default=9)
    parser.add_argument("--vocabulary", type=int, default=1024)
    parser.add_argument("--workers", type=int, default=14)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    torch.manual_seed(options.seed)
    torch.set_float32_matmul_precision("high")
    with open(options.text, encoding="utf-8") as file:
        text = file.read()
    tokenizer = train_tokenizer(text, options.vocabulary)
    config = dict(CONFIG, vocab_size=tokenizer.get_vocab_size(), bos_token_id=tokenizer.token_to_id(BOS),
                  eos_token_id=tokenizer.token_to_id(EOS))
    model = DeepseekV2(config).cuda()
    print(f"{sum(p.numel() for p in model.parameters()):,} parameters, {tokenizer.get_vocab_size()} tokens", flush=True)
    loader = torch.utils.data.DataLoader(Sequences(tokenizer.to_str(), text, options.seed), batch_size=BATCH,
                                         num_workers=options.workers, pin_memory=True, prefetch_factor=8)
    steps = train(model, loader, options.minutes, lambda line: print(line, flush=True))

    with torch.no_grad():  # what is shipped: bf16 weights
        for parameter in model.parameters():
            parameter.copy_(parameter.to(torch.bfloat16).float())
    model.eval()
    questions = held_out(200)
    score = dict(steps=steps, right=answers_right(model, tokenizer, questions))
    print(json.dumps(score), flush=True)
    export(model, tokenizer, config, options.out, score)
    if options.questions:
        with open(options.questions, "w", encoding="utf-8") as file:
            json.dump([dict(task=t, question=q, answer=a) for t, q, a in questions], file, indent=0)
            file.write("\n")


if __name__ == "__main__":
    main()
