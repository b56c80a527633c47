"""Run in the SGLang stack: a real attempt, in which each step's tokens and log-probabilities are looked at.

`probe_sglang.py ATTEMPT OUT [STALE]`: writes to OUT one JSON line a step: whether SGLang's greedy tokens are those of
transformers on the trainer's weights, and the largest difference of SGLang's and TRL's log-probs of what it drew.
At the step STALE the sync is left out. A last line says what came of requests without the run's secret, and of
killing SGLang's scheduler after the last step. Without STALE the first batch is a slow one.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path

from engines.sglang.client import EngineEnded, Sglang
from node.attempt import exit_code
from node.hardware import process_tree
from tests import guarded
from trainers.trl.driver import engines, train

# What SGLang's own check lets pass, or let pass with a Starlette that believes the header Host; the last is open.
WITHOUT_SECRET = (
    ("POST", "/update_weights_from_tensor", {"Host": "x/health?"}),
    *(("GET", path, {}) for path in ("/health_generate", "/health/x", "/openapi.json")),
    ("GET", "/health", {}),
)
GREEDY = {"temperature": 0.0, "max_new_tokens": 12, "ignore_eos": True}


def scheduler():
    """SGLang's process with the weights."""
    (found,) = (pid for pid in process_tree() if Path(f"/proc/{pid}/cmdline").read_text().startswith("sglang::sched"))
    return found


def looked_at(out, stale):
    original = engines.SglangRollout.__call__

    def call(self, prompts, trainer):
        import torch
        from trl.trainer.utils import pad

        step = trainer.state.global_step
        if step == stale:
            self._synced = step
        made = original(self, prompts, trainer)
        model = trainer.accelerator.unwrap_model(trainer.model)
        some = made["prompt_ids"][:: trainer.num_generations]
        drawn = self.engine.generate(some, GREEDY).token_ids
        told = []
        for ids in some:
            tokens = torch.tensor([ids])
            written = model.generate(
                tokens, attention_mask=torch.ones_like(tokens), max_new_tokens=12, do_sample=False, eos_token_id=None
            )
            told.append(written[0, len(ids) :].tolist())

        pairs = list(zip(made["prompt_ids"], made["completion_ids"], strict=True))
        keep = max(len(ids) for _, ids in pairs)

        def padded(value, side, one):
            return pad([torch.tensor([value] * len(ids) if value else ids) for ids in one], 0, side)

        before, after = [ids for ids, _ in pairs], [ids for _, ids in pairs]
        ids = torch.cat([padded(0, "left", before), padded(0, "right", after)], 1)
        mask = torch.cat([padded(1, "left", before), padded(1, "right", after)], 1)
        with torch.no_grad():
            own = trainer._get_per_token_logps_and_entropies(model, ids, mask, keep)[0]
        gap = max(
            abs(float(own[row, place]) - said)
            for row, said_of_row in enumerate(made["logprobs"])
            for place, said in enumerate(said_of_row)
        )
        line = {"step": step, "greedy": drawn == told, "gap": gap, "seed": self.engine.settings()["random_seed"]}
        line["first"] = made["completion_ids"][0]
        line["repeated"] = before[0] == before[1]
        line["shared"] = [
            text for text in Path(f"/proc/{scheduler()}/maps").read_text().split("\n") if "sglang_" in text
        ]
        with out.open("a") as file:
            file.write(json.dumps(line) + "\n")
        return made

    engines.SglangRollout.__call__ = call


class Slow(dict):
    def __getitem__(self, name):
        time.sleep(1 / 8)
        return super().__getitem__(name)


def slowed():
    """The first batch of eight takes a second until it has token ids, and two while its answer is read."""
    ask, waits = Sglang._ask, [1]

    def slowly(engine, path, **body):
        answer = ask(engine, path, **body)
        if path == "generate" and waits:
            time.sleep(waits.pop())
            answer = [{**one, "meta_info": Slow(one["meta_info"])} for one in answer]
        return answer

    Sglang._ask = slowly


def killed(out):
    """Has the engine lose its scheduler when it is about to be closed."""
    close = Sglang.close

    def kill_and_close(self):
        url = f"http://127.0.0.1:{self._port}"
        said = {"without": [guarded.status(url, *one)[0] for one in WITHOUT_SECRET]}
        secret, self._secret = self._secret, "another"
        try:
            self.generate([[1]], GREEDY)
        except RuntimeError as error:
            said["stranger"] = str(error)
        self._secret = secret
        os.kill(scheduler(), signal.SIGKILL)
        try:
            self.generate([[1]], GREEDY)
        except EngineEnded as error:
            said["killed"] = str(error)
        with out.open("a") as file:
            file.write(json.dumps(said) + "\n")
        close(self)

    Sglang.close = kill_and_close


if __name__ == "__main__":
    out = Path(sys.argv[2])
    looked_at(out, int(sys.argv[3]) if len(sys.argv) > 3 else -1)
    if len(sys.argv) > 3:
        killed(out)
    else:
        slowed()
    sys.argv[1:] = [sys.argv[1]]
    sys.exit(exit_code(train.train))
