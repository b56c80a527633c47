"""Made-up cases of equal work and terms: numbers that differ a little or much, missing numbers, loops that overlap."""

import re
from pathlib import Path

import numpy as np

from .answer import EQUAL_WORK, PER_STEP, cases_into
from .writers import arms, command, noise, numbered, of, responses, seconds_of, table, trl, verl

CASES = []
case = cases_into(CASES)


def prompts_apart(share, spread=0.0, runs=3, steps=30):
    """Equal engines; prompts of arm `b` are longer by this share, and vary from step to step."""

    def write(file, arm, rng):
        lengths = responses(rng, steps)
        prompts = 1000 * of(arm, 1.0, 1.0 + share) * noise(rng, steps, spread)
        verl(file, (seconds_of(lengths) + prompts * 64 / 2000) * noise(rng, steps), lengths, prompt=prompts)

    return arms(runs, write)


@case("", unit=EQUAL_WORK)
def prompts_longer_by_1_percent():
    """The same within 2%."""
    return prompts_apart(0.01)


@case("~ - =", unit=PER_STEP, says=["prompts of 1000 against 1030 tokens"])
def prompts_longer_by_3_percent():
    """Not the same."""
    return prompts_apart(0.03)


@case("-", unit=PER_STEP, says=["prompts of 1000 against 1500 tokens"])
def prompts_longer_by_half():
    """Not the same."""
    return prompts_apart(0.5)


@case("~ - =", unit=PER_STEP, says=["prompts of"])
def prompts_longer_by_10_percent_in_few_steps():
    """Noise does not show that they are the same."""
    return prompts_apart(0.1, 0.1, 2, 10)


def numbers_apart(a, b):
    """Equal engines with other numbers of responses a step."""

    def write(file, arm, rng):
        lengths = responses(rng, 30, of(arm, a, b))
        verl(file, seconds_of(lengths) * noise(rng, 30), lengths)

    return arms(3, write)


@case("~ =", unit=EQUAL_WORK)
def responses_more_by_1_percent():
    """The same within 2%."""
    return numbers_apart(100, 101)


@case("~ - =", unit=PER_STEP, says=["100 against 103 responses"])
def responses_more_by_3_percent():
    """Not the same."""
    return numbers_apart(100, 103)


@case("-", unit=PER_STEP, says=["100 against 150 responses"])
def responses_more_by_half():
    """Not the same."""
    return numbers_apart(100, 150)


@case("~ -", unit=PER_STEP, says=["turns"])
def turns_in_one_log():
    """One arm's log has 4 turns, the other's none."""

    def write(file, arm, rng):
        lengths = responses(rng, 30)
        turns = [{"num_turns/mean": 4.0, "num_turns/max": 8.0}] * 30
        took = seconds_of(lengths) * noise(rng, 30) + of(arm, 0, 12)
        verl(file, took, lengths, more=of(arm, None, turns))

    return arms(3, write)


def with_tools(times, a, b):
    """Arms whose tool calls take `a` and `b` seconds, which the log has."""

    def write(file, arm, rng):
        lengths = responses(rng, 30)
        tools = of(arm, a, b) * noise(rng, 30, 0.05)
        took = (seconds_of(lengths) + tools) * noise(rng, 30) / of(arm, 1.0, times)
        logged = [{"num_turns/mean": 4.0, "timing_s/agent_loop/tool_calls/mean": seconds} for seconds in tools]
        verl(file, took, lengths, more=logged)

    return arms(3, write)


@case("~ -", unit=PER_STEP, says=["tool calls of"])
def slower_tools():
    """Equal engines and turns; tools take 4 s for a response, and 24 s."""
    return with_tools(1.0, 4, 24)


@case("+", 1.2, EQUAL_WORK)
def equal_tools():
    """Tools take about 4 s in both."""
    return with_tools(1.2, 4.0, 4.1)


@case("+", 1.2, EQUAL_WORK)
def responses_collapse_midway():
    """From step 21 on one arm's responses are a tenth as long; its seconds do not follow a line."""

    def write(file, arm, rng):
        lengths = responses(rng, 40, typical=np.where(np.arange(40) >= of(arm, 40, 20), 65.0, 650.0))
        took = [5 + own.sum() / 4000 + (own.max() / 200) ** 1.3 / 3 + (own**2).sum() / 2e7 for own in lengths]
        verl(file, took * noise(rng, 40) / of(arm, 1.0, 1.2), lengths)

    return arms(3, write)


@case("~ - x", unit=PER_STEP, says=["thrown away|batches"])
def dynamic_sampling():
    """One arm generates two batches for a step and keeps one."""

    def write(file, arm, rng):
        lengths = responses(rng, 30)
        batches = [{"train/num_gen_batches": of(arm, 1.0, 2.0)}] * 30
        verl(file, seconds_of(lengths) * noise(rng, 30) * of(arm, 1.0, 1.9), lengths, more=batches)

    return arms(3, write)


@case("+", 1.2)
def lengths_that_are_no_numbers():
    """Three steps of one arm's runs have nan in place of lengths."""

    def write(file, arm, rng):
        lengths = responses(rng, 30)
        verl(file, seconds_of(lengths) * noise(rng, 30) / of(arm, 1.0, 1.2), lengths)
        if arm == "b":
            lines = Path(file).read_text(encoding="utf-8").splitlines(keepends=True)
            lost = [re.sub(r"(response_length/\w+|perf/total_num_tokens):[\d.]+", r"\1:nan", one) for one in lines[5:8]]
            Path(file).write_text("".join([*lines[:5], *lost, *lines[8:]]), encoding="utf-8")

    return arms(3, write)


@case("~ -", unit=PER_STEP, says=["number of responses"])
def tokens_counted_in_one_log():
    """TRL, 64 completions a step against 128; num_tokens stands in one arm's logs."""

    def write(file, arm, rng):
        lengths = responses(rng, 30, of(arm, 64, 128), 300, 1024)
        trl(file, seconds_of(lengths) * noise(rng, 30), lengths)
        if arm == "a":
            text = Path(file).read_text(encoding="utf-8")
            Path(file).write_text(re.sub(r"'num_tokens': [\d.]+, ", "", text), encoding="utf-8")

    return arms(3, write)


@case("-", 0.8, EQUAL_WORK)
def a_requeued_run_of_trl():
    """Two files a run; num_tokens goes on."""

    def write(file, arm, rng):
        lengths = responses(rng, 40, typical=300, cap=1024)
        trl(file, seconds_of(lengths) * noise(rng, 40) / of(arm, 1.0, 0.8), lengths)
        rows = Path(file).read_text(encoding="utf-8").splitlines(keepends=True)
        Path(file).unlink()
        for part, own in enumerate((rows[:20], rows[20:])):
            Path(file[:2]).mkdir(exist_ok=True)
            Path(file[:2], f"{part}.log").write_text("".join(own), encoding="utf-8")

    return [re.sub(r"(\w\d)\.log", r"\1/0.log,\1/1.log", word) for word in arms(3, write)]


def generating(a, b):
    """Arm `b` is 1.6x as fast; the shares of generation in a step of both."""

    def write(file, arm, rng):
        lengths = responses(rng, 30)
        took = seconds_of(lengths) * noise(rng, 30) / of(arm, 1.0, 1.6)
        share = of(arm, a, b)
        timers = [{"gen": share * seconds, "update_actor": (0.95 - share) * seconds} for seconds in took]
        verl(file, took, lengths, timers=timers)

    return arms(3, write)


@case("~ + x", not_unit=EQUAL_WORK, says=["overlap|generates while"])
def both_generate_while_they_train():
    """Generation is 5% of the step."""
    return generating(0.05, 0.05)


@case("~ + x", not_unit=EQUAL_WORK, says=["overlap|generates while"])
def one_generates_while_it_trains():
    """Generation is 4% of the step in one arm."""
    return generating(0.7, 0.04)


@case("~ + x", not_unit=EQUAL_WORK)
def stale_responses():
    """Names of staleness in both logs."""

    def write(file, arm, rng):
        lengths = responses(rng, 30)
        stale = [{"fully_async/count/stale_trajectory_processed": 3.0, "fully_async/count/staleness_samples": 20.0}]
        verl(file, seconds_of(lengths) * noise(rng, 30) / of(arm, 1.0, 1.6), lengths, more=stale * 30)

    return arms(3, write)


@case("x", says=["truncated"])
def more_truncated_responses():
    """One arm stops at 800 tokens in place of 4,000."""

    def write(file, arm, rng):
        cap = of(arm, 4000, 800)
        lengths = responses(rng, 30, cap=cap)
        cut = [{"response_length/clip_ratio": float((own >= cap).mean())} for own in lengths]
        head = command("vllm", **{"data.max_response_length": 4000})
        verl(file, seconds_of(lengths) * noise(rng, 30), lengths, more=cut, head=head)

    return arms(3, write)


@case("x", says=["GPU"])
def other_numbers_of_gpus():
    """4 GPUs against 8."""

    def write(file, arm, rng):
        lengths = responses(rng, 30)
        head = command(of(arm, "vllm", "sglang"), gpus=of(arm, 4, 8))
        verl(file, seconds_of(lengths) * noise(rng, 30) / of(arm, 1.0, 2.0), lengths, head=head)

    return arms(1, write)


@case("~ -", says=["custom_reward_function.path"])
def other_reward_files():
    """The command lines name another file of the reward."""

    def write(file, arm, rng):
        lengths = responses(rng, 25)
        head = command("vllm", **{"custom_reward_function.path": of(arm, "fast.py", "slow.py")})
        verl(file, seconds_of(lengths) * noise(rng, 25) / of(arm, 1.0, 0.8), lengths, head=head)

    return arms(3, write)


@case("", says=["enforce_eager"])
def mixed_terms_in_an_arm():
    """One run of an arm ran without CUDA graphs, by its command line."""

    def write(file, arm, rng):
        lengths = responses(rng, 25)
        head = command("vllm", **{"actor_rollout_ref.rollout.enforce_eager": file == "b1.log"})
        verl(file, seconds_of(lengths) * noise(rng, 25), lengths, head=head)

    return arms(2, write)


@case("~ x", says=["unit"])
def milliseconds_against_seconds():
    """Two tables with one name of a column and two units."""

    def write(file, arm, rng):
        table(file, **numbered(of(arm, 40, 30000) * noise(rng, 12, 0.02)))

    return arms(3, write, "csv")
