"""Trains an attempt and writes what it generated and learned from: `watched.py TRAINER OUT STOP_AT THEN ATTEMPT`.

A line for each generation: prompts, completions and rewards, by token. At generation STOP_AT (0: never) it asks itself
to stop, as Slurm would. Of several processes each writes a file of its own (OUT and its rank), and one stops itself.
THEN is `-`, or a file with a list of swift's settings, which are resolved: importing the libraries again would take
longer than all of it.
"""

import json
import os
import signal
import sys
from importlib.util import find_spec
from pathlib import Path

from node.phase_clock import PhaseClock

TRAINER, OUT, STOP_AT, THEN, ATTEMPT = sys.argv[1:]
RANK = os.environ.get("RANK", "")
seen = 0


def tell(**line):
    global seen
    seen += 1
    with Path(OUT + RANK).open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")
    if seen == int(STOP_AT) and RANK in ("", "1"):
        os.kill(os.getpid(), signal.SIGTERM)


def watch_trl(trainer):
    generate, score = trainer._generate, trainer._calculate_rewards
    held = {}

    def generated(self, prompts):
        made = generate(self, prompts)
        held.update(prompts=made[0], completions=made[1])
        return made

    def scored(self, *args, **kwargs):
        rewards = score(self, *args, **kwargs)
        tell(**held, rewards=rewards.tolist())
        return rewards

    trainer._generate, trainer._calculate_rewards = generated, scored


def watch_swift(trainer):
    from accelerate.utils import gather_object

    generate, prepare, close = trainer._engine_infer, trainer._prepare_batch_inputs, PhaseClock.close
    phases = []
    held = {}
    calls = []

    def generated(self, infer_requests, *args, **kwargs):
        before = len(phases)
        outputs = generate(self, infer_requests, *args, **kwargs)
        calls.append((len(infer_requests), sum(phases[before:])))
        for request, output in zip(infer_requests, outputs, strict=True):
            held.setdefault(request.uuid, []).append(output.response)
        return outputs

    def prepared(self, samples):
        batches = prepare(self, samples)
        encoded = [sample.encoded for sample in samples]
        # With dynamic_sample others were made, too, and what is kept may come from another process.
        every = {name: one for of_process in gather_object([dict(held)]) for name, one in of_process.items()}
        made = [every[sample.request_id] for sample in samples]
        # Those of the next step may be there already.
        for sample in samples:
            held.pop(sample.request_id, None)
        said = [[turn.choices[0].logprobs["content"] for turn in one] for one in made] if self.use_fast_infer else []
        tell(
            # Of several turns the last one's, which holds all that was written before.
            begun=[len(one[0].prompt_token_ids) for one in made],
            prompts=[one[-1].prompt_token_ids for one in made],
            completions=[[token for turn in one for token in turn.choices[0].token_ids] for one in made],
            said=[[token["logprob"] for content in one for token in content] for one in said],
            last=[one[-1].choices[0].token_ids for one in made],
            calls=list(calls),
            rewards=self._rewards_per_func.tolist(),
            trained=[list(one["input_ids"]) for one in encoded],
            labels=[list(one["labels"]) for one in encoded],
            counted=[int(n) for batch in batches for n in batch["grpo_batch"].completion_mask.sum(1)],
            policy=[row for batch in batches for row in _of_completions(batch["grpo_batch"], "old_per_token_logps")],
            initial=[row for batch in batches for row in _of_completions(batch["grpo_batch"], "ref_per_token_logps")],
            synced=dict(synced),
            # What an engine would get, which all processes gather.
            sent={name: float(one.double().norm()) for name, one in self._collect_state_dict_for_vllm().items()}
            if RANK
            else {},
        )
        calls.clear()
        return batches

    def closed(self):
        phases.append(close(self))
        return phases[-1]

    trainer._engine_infer, trainer._prepare_batch_inputs = generated, prepared
    PhaseClock.close = closed


def _of_completions(batch, name):
    """Log-probabilities of each completion's tokens."""
    return [row[mask].tolist() for row, mask in zip(getattr(batch, name), batch.completion_mask.bool(), strict=True)]


synced = {"adapter": 0, "weights": 0}


def watch_sync():
    """Count how often vLLM is given an adapter, and how often whole weights."""
    from vllm.v1.engine.llm_engine import LLMEngine
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner

    add, reload = LLMEngine.add_lora, GPUModelRunner.reload_weights

    def added(self, request):
        synced["adapter"] += 1
        return add(self, request)

    def reloaded(self, *args, **kwargs):
        synced["weights"] += 1
        return reload(self, *args, **kwargs)

    LLMEngine.add_lora, GPUModelRunner.reload_weights = added, reloaded


def what_is_resolved():
    """What each of the settings comes to, or why it is refused."""
    import swift.utils

    from common.errors import UserError
    from trainers.swift.driver.train import resolved

    swift.utils.get_device_count = lambda: 2  # as on a node with GPUs
    for settings in json.loads(Path(THEN).read_text()):
        try:
            version, found = resolved(settings, [{"weight": 1.0}])
            tell(version=version, settings=json.loads(json.dumps(found, default=str)))
        except UserError as error:
            tell(refused=str(error))


if __name__ == "__main__":
    sys.argv = [TRAINER, ATTEMPT]
    if TRAINER == "trl":
        from trl import GRPOTrainer

        watch = watch_trl
        from trainers.trl.driver import train as driver
    else:
        from trainers.swift.driver import train as driver
        from trainers.swift.driver.arguments import set_environment

        set_environment(Path(OUT).parent)
        from swift.rlhf_trainers import GRPOTrainer

        watch = watch_swift
        if find_spec("vllm"):
            watch_sync()
        if RANK:
            from tests.trainers.trl.sharded_on_cpu import lend_cpu

            lend_cpu()
    watch(GRPOTrainer)
    code = driver.exit_code(driver.train)
    if THEN != "-":
        what_is_resolved()
    sys.exit(code)
