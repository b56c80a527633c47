"""Cases whose logs are made up: two engines of known speed, and one thing that people's logs have."""

import itertools

import numpy as np

from .answer import EQUAL_WORK, PER_STEP, cases_into
from .writers import (
    TIMERS,
    arms,
    at_speed,
    noise,
    numbered,
    of,
    responses,
    seconds_of,
    table,
    trl,
    verl,
    verl_file_logger,
)

CASES = []
case = cases_into(CASES)


# Runs.


@case("~", 1.111, PER_STEP)
def runs_have_no_order():
    """Two runs of each arm on nodes whose speeds differ by 1.3x: no pairs, so not resolved."""
    speeds = {"a0": 100, "a1": 130, "b0": 90, "b1": 117}
    return arms(2, lambda file, arm, rng: verl(file, speeds[file[:2]] * noise(rng, 20)))


@case("~ +", np.exp(np.mean(np.log([100, 104, 108, 135, 140]))) / 97, within=0.02)
def five_runs_against_two():
    """Every run counts."""
    speeds = {"a0": 100, "a1": 104, "a2": 108, "a3": 135, "a4": 140}
    return arms((5, 2), lambda file, arm, rng: verl(file, speeds.get(file[:2], 97) * noise(rng, 20)))


@case("~", 1.03, says=["1 run 60 steps"])
def one_run_in_three_files():
    """A job that was requeued twice is one run, so it has no direction."""

    def write(file, arm, rng):
        part = int(file[1])
        verl(file, of(arm, 100, 97) * noise(rng, 20, 0.02), first=1 + 20 * part)

    return arms(3, write)


@case("~", 1.03, says=["1 run 40 steps"])
def one_run_in_two_formats():
    """A console and the file logger's lines of one run are one run."""

    def write(file, arm, rng):
        took = of(arm, 100, 97) * noise(rng, 40, 0.02)
        verl(file, took)
        verl_file_logger(f"{arm}0.jsonl", took)

    return [f"{word},{word[0]}0.jsonl" for word in arms(1, write)]


@case("+", 1.2, EQUAL_WORK, says=["3 runs 72 steps"])
def three_runs_in_two_files_each():
    """Three runs of each arm, each in two files of a folder."""

    def write(file, arm, rng):
        lengths = responses(rng, 24)
        took = seconds_of(lengths) * noise(rng, 24) / of(arm, 1.0, 1.2)
        verl(f"{file[:2]}/1.log", took[:12], lengths[:12])
        verl(f"{file[:2]}/2.log", took[12:], lengths[12:], first=13)

    arms(3, write)
    files = {arm: [f"{arm}{run}/{part}.log" for run, part in itertools.product(range(3), (1, 2))] for arm in "ab"}
    return [f"{arm}={','.join(names)}" for arm, names in files.items()]


def one_run_each(times):
    return arms(1, at_speed(times, 40))


@case("~", 2.0, EQUAL_WORK, says=["likely faster"])
def one_run_twice_as_fast():
    """No repeated runs differ by a factor of two."""
    return one_run_each(2.0)


@case("~", 1 / 2.0, EQUAL_WORK, says=["likely slower"])
def one_run_half_as_fast():
    """The same with the arms turned."""
    return one_run_each(1 / 2.0)


@case("~", 1.02, EQUAL_WORK, says_not=["likely"])
def one_run_nearly_as_fast():
    """Repeated runs differ by more than 2%."""
    return one_run_each(1.02)


# A step.


@case("~ x refused", says=["--unit"])
def minutes_against_seconds():
    """A table in seconds and one in minutes: no engine is 40 times as fast."""
    return arms(3, lambda file, arm, rng: table(file, **numbered(of(arm, 40, 1.0) * noise(rng, 12, 0.02), 4)), "csv")


@case("~ - x refused", says=["wall"])
def wall_clock_with_evaluations():
    """Only timestamps, and one arm evaluates every second step: without these it is the faster one, 0.91x."""

    def write(file, arm, rng):
        took = of(arm, 10, 11) * noise(rng, 30) + (np.arange(30) % 2 * 4 if arm == "a" else 0)
        table(file, step=range(1, 31), timestamp=np.cumsum(took).round(2))

    return arms(3, write, "csv")


@case("~ + =", says=["--warmup"])
def warm_up_has_a_tail():
    """Ten steps, of which one arm's first are still compiled: its last are 1.06x as fast."""
    tail = np.array([60, 10, 9, 8, 7, 5, 3, 2, 1, 0.0])

    def write(file, arm, rng):
        verl(file, (of(arm, 50, 47) + of(arm, 40.0 * (np.arange(10) == 0), tail)) * noise(rng, 10, 0.004))

    return arms(5, write)


def saving(rng, seconds, save):
    """Steps in which a checkpoint is saved and timed."""
    times = save * noise(rng, len(seconds), 0.05)
    timers = [
        {name: share * own for name, share in TIMERS.items()} | {"save_checkpoint": time}
        for own, time in zip(seconds, times, strict=True)
    ]
    return {"seconds": seconds + times, "timers": timers, "head": "verl==0.5\n"}


@case("-", 50 / 52, PER_STEP, within=0.015)
def one_arm_saves_in_every_step():
    """A checkpoint that a timer names is not the engine's: without it that arm is the faster one."""

    def write(file, arm, rng):
        took = of(arm, 50, 52) * noise(rng, 20)
        verl(file, **saving(rng, took, 10)) if arm == "a" else verl(file, took, head="verl==0.5\n")

    return arms(3, write)


@case("+", 1.1, PER_STEP, within=0.015)
def both_arms_save_in_every_step():
    """Without the timed checkpoints of both, 1.10x."""
    return arms(3, lambda file, arm, rng: verl(file, **saving(rng, of(arm, 55, 50) * noise(rng, 20), 10)))


@case("~ =", 1.0)
def counters_advance_by_other_gaps():
    """One arm's counter goes 4 for a step; steps grow from 10 to 30 s in both: identical engines."""

    def write(file, arm, rng):
        table(file, **numbered((10 + 0.5 * np.arange(1, 41)) * noise(rng, 40, 0.02), each=of(arm, 1, 4)))

    return arms(3, write, "csv")


@case("~ = x refused", says=["time"])
def phases_without_a_total():
    """Columns generation_time and training_time, 18.2 s against 18.6 s: no phase is the step."""
    phases = {"a": (10, 8.2), "b": (9.4, 9.2)}

    def write(file, arm, rng):
        generation, training = (seconds * noise(rng, 20, 0.004) for seconds in phases[arm])
        table(file, step=range(1, 21), generation_time=generation.round(4), training_time=training.round(4))

    return arms(3, write, "csv")


@case("-", 0.8, PER_STEP, says=["generation", "no timer"])
def the_difference_is_in_no_timer():
    """Equal generation, and 15 s in no timer: slower, and not by generation."""

    def write(file, arm, rng):
        took = 60 * noise(rng, 20)
        own = [{name: share * seconds for name, share in TIMERS.items()} for seconds in took]
        verl(file, took + of(arm, 0, 15), timers=own)

    return arms(3, write)


@case("~ =", 1.0, within=0.05)
def one_arm_is_still_running():
    """Identical engines whose steps grow: one has 100 steps, the other 40 so far."""

    def write(file, arm, rng):
        steps = of(arm, 100, 40)
        verl(file, (10 + 0.3 * np.arange(steps)) * noise(rng, steps))

    return arms(2, write)


@case("+", 1.3, PER_STEP)
def a_plain_table_is_compared():
    """A header, a step and its seconds."""
    return arms(3, lambda file, arm, rng: table(file, **numbered(of(arm, 13, 10) * noise(rng, 20, 0.02))), "csv")


# Equal work.


@case("+", 1.25, EQUAL_WORK)
def faster_at_equal_work():
    """Other lengths, equal rewards."""
    return arms(3, at_speed(1.25))


@case("+", 1.25, EQUAL_WORK, says=["tokens on average"])
def faster_though_its_responses_are_longer():
    """Lengths that differ are taken out, and named."""

    def write(file, arm, rng):
        lengths = responses(rng, 30, typical=of(arm, 600, 700))
        verl(file, seconds_of(lengths) * noise(rng, 30) / of(arm, 1.0, 1.25), lengths)

    return arms(3, write)


@case("-", 0.8, EQUAL_WORK)
def slower_at_equal_work_in_trl():
    """num_tokens gives the number of responses; a trainer without tools has one turn."""

    def write(file, arm, rng):
        lengths = responses(rng, 30, typical=300, cap=1024)
        trl(file, seconds_of(lengths) * noise(rng, 30) / of(arm, 1.0, 0.8), lengths)

    return arms(3, write)


@case("+", 1.2, EQUAL_WORK)
def lengths_grow_and_runs_are_unequally_long():
    """Lengths grow by 1% a step; one arm has 60 steps and the other 30."""

    def write(file, arm, rng):
        steps = of(arm, 60, 30)
        lengths = responses(rng, steps, typical=500 * 1.01 ** np.arange(steps))
        verl(file, seconds_of(lengths) * noise(rng, steps) / of(arm, 1.0, 1.2), lengths)

    return arms(3, write)


def with_turns(times, a, b):
    """Arms whose responses call tools `a` and `b` times, 4 s each."""

    def write(file, arm, rng):
        lengths = responses(rng, 30)
        turns = of(arm, a, b) * noise(rng, 30, 0.03)
        took = (seconds_of(lengths) + 4 * turns) * noise(rng, 30) / of(arm, 1.0, times)
        verl(file, took, lengths, more=[{"num_turns/mean": mean, "num_turns/max": 2 * mean} for mean in turns])

    return arms(3, write)


@case("~ -", unit=PER_STEP, says=["turns"])
def more_turns():
    """Equal engines; one policy calls tools 6 times a response, the other 2 times."""
    return with_turns(1.0, 2, 6)


@case("+", 1.2, EQUAL_WORK)
def equal_turns():
    """Both call tools 2 times."""
    return with_turns(1.2, 2, 2)


@case("~ -", unit=PER_STEP, says=["prompts of 100 against 3000 tokens"])
def longer_prompts():
    """Equal engines; prompts of 100 and of 3,000 tokens."""

    def write(file, arm, rng):
        lengths, prompt = responses(rng, 30), of(arm, 100, 3000)
        verl(file, (seconds_of(lengths) + prompt * 64 / 25000) * noise(rng, 30), lengths, prompt=float(prompt))

    return arms(3, write)


@case("~ -", unit=PER_STEP, says=["64 against 128 responses"])
def more_completions_in_trl():
    """Equal engines; num_tokens shows 64 completions a step against 128."""

    def write(file, arm, rng):
        lengths = responses(rng, 25, of(arm, 64, 128), 300, 1024)
        trl(file, seconds_of(lengths) * noise(rng, 25), lengths)

    return arms(3, write)


@case(
    "~ - x",
    unit=PER_STEP,
    says=["1 against 2000|1.0 against 2000"],
    says_not=["per response token"],
)
def collapsed_responses():
    """Responses of 1 token against 2,000."""

    def write(file, arm, rng):
        lengths = [np.full(512, of(arm, 1.0, 2000.0)) for _ in range(8)]
        verl(file, of(arm, 35, 350) * noise(rng, 8), lengths)

    return arms(2, write)


@case("~ - x", unit=PER_STEP, says=["number of responses", "1000 against 3"])
def number_of_responses_in_one_arm():
    """Lengths stand in both logs, the number of responses in one."""

    def write(file, arm, rng):
        if arm == "a":
            means = {"response_length/mean": 1000.0, "response_length/max": 2000.0}
            return verl(file, 300 * noise(rng, 12), more=[means] * 12)
        return verl(file, 500 * noise(rng, 12), [rng.normal(3000, 20, 64).round() for _ in range(12)])

    return arms(2, write)


def learning_nothing(runs):
    def write(file, arm, rng):
        lengths = responses(rng, 20)
        took = seconds_of(lengths) * noise(rng, 20) / of(arm, 1.0, 1.4)
        verl(file, took, lengths, reward=of(arm, 0.6, 0.1))

    return arms(runs, write)


@case("x", says=["reward"])
def an_arm_that_learns_nothing():
    """A faster arm with a reward of 0.1 against 0.6 is not comparable."""
    return learning_nothing(3)


@case("x", says=["reward"])
def one_run_that_learns_nothing():
    """The same with one run an arm."""
    return learning_nothing(1)
