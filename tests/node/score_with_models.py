"""Scores texts with tiny reward models of several kinds: `score_with_models.py FOLDER`.

In one process of a stack, since importing the libraries takes longer than all of it.
"""

import sys
from pathlib import Path

import torch

from common.errors import UserError
from node.built_in_rewards import Response
from node.reward_model import Classifier, load_tokenizer
from node.rewards import reward_functions
from tests.classifier import write_classifier

FOLDER = Path(sys.argv[1])
PROMPTS = [[{"role": "system", "content": "Be brief."}, {"role": "user", "content": f"{n} + {n}?"}] for n in range(7)]
TEXTS = ["4", "It is four, of course.", "", "no " * 40, "4", "🍎🍎", "four"]
RESPONSES = [Response(text=text, prompt=prompt) for text, prompt in zip(TEXTS, PROMPTS, strict=True)]


def folder(name, **words):
    write_classifier(FOLDER / name, **words)
    return FOLDER / name


def model(at, **words):
    found = Classifier({"model": str(at), "name": "liked", "batch_size": 3, "dtype": "float32", **words}, at)
    found.ready("cpu")
    return found


def near(values, others, tolerance=1e-5):
    return all(abs(a - b) < tolerance for a, b in zip(values, others, strict=True))


def refused(words, do):
    try:
        do()
    except UserError as error:
        assert words in str(error), error
    else:
        raise AssertionError(words)


def by_hand(at, response):
    """The score as transformers' documentation has it: one text, no batch, no padding."""
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(str(at))
    turns = [*response.prompt, {"role": "assistant", "content": response.text}]
    text = tokenizer.apply_chat_template(turns, tokenize=False) if tokenizer.chat_template else None
    text = text or "\n".join(one["content"] for one in turns)
    network = AutoModelForSequenceClassification.from_pretrained(str(at)).eval()
    with torch.no_grad():
        return float(network(**tokenizer(text, return_tensors="pt", add_special_tokens=False)).logits[0, 0])


chat, raw = folder("chat"), folder("raw", template=False)
torch.manual_seed(3)
before = torch.random.get_rng_state()
whole, plain = model(chat), model(raw)
assert torch.equal(before, torch.random.get_rng_state())

# The input is the chat template, or the contents; the score is the classifier's output.
text = whole.text(RESPONSES[0])
assert text.startswith("<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n0 + 0?<|im_end|>\n")
assert text.endswith("<|im_start|>assistant\n4<|im_end|>\n")
assert plain.text(RESPONSES[0]) == "Be brief.\n0 + 0?\n4"
together = whole.score(RESPONSES)[0]
for scores, at in ((together, chat), (plain.score(RESPONSES)[0], raw)):
    assert near(scores, [by_hand(at, one) for one in RESPONSES]) and max(scores) - min(scores) > 1e-2

# It does not depend on the batch.
assert whole.score(RESPONSES)[0] == together and near(whole.score(RESPONSES[::-1])[0][::-1], together)
assert near([whole.score([one])[0][0] for one in RESPONSES], together) and whole.truncated == 0

# The start of a too long text is cut, and counted.
short = model(chat, max_length=20)
scores, ids = short.score(RESPONSES)[0], load_tokenizer(chat)(whole.text(RESPONSES[3]), add_special_tokens=False)
assert 0 < short.truncated <= 7
assert near(scores[3:4], [float(whole._model(torch.tensor([ids["input_ids"][-20:]])).logits[0, 0])])

# Half precision is close, and logs its counts.
of_half = {"model": str(chat), "revision": None, "name": "liked", "batch_size": 3, "dtype": "bfloat16"}
(function,) = reward_functions([of_half], models={str(chat): chat})
function.ready("cpu")
counted = {}
half = function(TEXTS, PROMPTS, log_metric=counted.__setitem__)
assert near(half, together, 0.05) and half != together
assert counted == {"rewards/liked/failed": 0.0, "rewards/liked/truncated": 0.0}

# What cannot be used is named.
with torch.no_grad():
    whole._model.score.weight.fill_(float("nan"))
refused("liked gives no finite number for any of 7 completions in float32", lambda: whole.score(RESPONSES))
headless, two = folder("headless", head=False), folder("two", labels=2)
refused("lack score.weight, so its scores would be random", lambda: model(headless))
refused("has 2 labels, and a reward model has one", lambda: model(two))
for file in ("tokenizer.json", "tokenizer_config.json"):
    (raw / file).write_text("{")
refused("the tokenizer of the reward model", lambda: model(raw))
unknown = [{"model": "elsewhere", "name": "liked"}]
refused("elsewhere is not among the prepared inputs", lambda: reward_functions(unknown))
