"""Scores texts with tiny reward models of several kinds, and tells what came of it: `score_with_models.py FOLDER OUT`.

In one process of a stack, since importing the libraries takes longer than all of it.
"""

import json
import sys
from pathlib import Path

import torch

from common.errors import UserError
from node.built_in_rewards import Response
from node.reward_model import Classifier, load_tokenizer
from node.rewards import reward_functions
from tests.classifier import write_classifier

FOLDER, OUT = Path(sys.argv[1]), Path(sys.argv[2])
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


def refused(do):
    try:
        do()
    except UserError as error:
        return str(error)
    return ""


def by_hand(at, response):
    """The score as transformers' documentation has it: one text, no batch, no padding."""
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(str(at))
    stderr = [*response.prompt, {"role": "assistant", "content": response.text}]
    text = tokenizer.apply_chat_template(stderr, tokenize=False) if tokenizer.chat_template else None
    text = text or "\n".join(one["content"] for one in stderr)
    network = AutoModelForSequenceClassification.from_pretrained(str(at)).eval()
    with torch.no_grad():
        return float(network(**tokenizer(text, return_tensors="pt", add_special_tokens=False)).logits[0, 0])


chat, raw = folder("chat"), folder("raw", template=False)
torch.manual_seed(3)
before = torch.random.get_rng_state()
whole, plain = model(chat), model(raw)
results = {"random_state_kept": bool(torch.equal(before, torch.random.get_rng_state()))}
together = whole.score(RESPONSES)[0]
results["together"], results["again"] = together, whole.score(RESPONSES)[0]
results["reversed"] = whole.score(RESPONSES[::-1])[0][::-1]
results["alone"] = [whole.score([one])[0][0] for one in RESPONSES]
results["by_hand"] = [by_hand(chat, one) for one in RESPONSES]
results["raw"], results["raw_by_hand"] = plain.score(RESPONSES)[0], [by_hand(raw, one) for one in RESPONSES]
results["texts"] = [whole.text(RESPONSES[0]), plain.text(RESPONSES[0])]
results["untruncated"] = whole.truncated

short = model(chat, max_length=20)
results["short"] = short.score(RESPONSES)[0]
results["truncated"] = short.truncated
ids = load_tokenizer(chat)(whole.text(RESPONSES[3]), add_special_tokens=False)["input_ids"]
results["last_tokens_alone"] = float(whole._model(torch.tensor([ids[-20:]])).logits[0, 0])

function = reward_functions(
    [{"model": str(chat), "revision": None, "name": "liked", "batch_size": 3, "dtype": "bfloat16"}],
    models={str(chat): chat},
)[0]
function.ready("cpu")
counted = {}
results["half"] = function(TEXTS, PROMPTS, log_metric=counted.__setitem__)
results["counted"] = counted

with torch.no_grad():
    whole._model.score.weight.fill_(float("nan"))
results["none_finite"] = refused(lambda: whole.score(RESPONSES))
results["without_head"] = refused(lambda: model(folder("headless", head=False)))
results["two_labels"] = refused(lambda: model(folder("two", labels=2)))
for file in ("tokenizer.json", "tokenizer_config.json"):
    (raw / file).write_text("{")
results["broken_tokenizer"] = refused(lambda: model(raw))
results["not_prepared"] = refused(lambda: reward_functions([{"model": "elsewhere", "name": "liked"}]))
OUT.write_text(json.dumps(results))
