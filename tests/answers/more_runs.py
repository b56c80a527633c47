"""Made-up cases of what a run is and which steps count: requeues, seeds that failed, long steps, clocks, warm-ups."""

import shutil
from pathlib import Path

import numpy as np

from .answer import EQUAL_WORK, PER_STEP, cases_into
from .writers import (
    TIMERS,
    arms,
    at_speed,
    command,
    noise,
    numbered,
    of,
    responses,
    seconds_of,
    table,
    trl,
    trl_bars,
    verl,
    verl_file_logger,
)

CASES = []
case = cases_into(CASES)


@case("~", 1.03, says=["1 run 40 steps"])
def a_requeued_run_repeats_steps():
    """A run that goes on from the checkpoint of step 15: steps 1 to 20, and 16 to 40."""

    def write(file, arm, rng):
        took = of(arm, 100, 97) * noise(rng, 45, 0.02)
        verl(file, took[:20]) if file[1] == "0" else verl(file, took[20:], first=16)

    return arms(2, write)


@case("~", 1.0, EQUAL_WORK, says=["left out"], says_not=["2 runs", "likely"])
def a_run_goes_on_with_other_gpus():
    """Steps 21 to 40 of one arm ran on 4 GPUs in place of 8: they are left out, and said."""

    def write(file, arm, rng):
        lengths, slower = responses(rng, 20), 2 if file == "b1.log" else 1
        head = command(of(arm, "vllm", "sglang"), gpus=8 // slower)
        verl(file, seconds_of(lengths) * noise(rng, 20) * slower, lengths, first=1 + 20 * int(file[1]), head=head)

    return arms(2, write)


@case("~ =", 1.0, says=["2 runs 80 steps"])
def two_formats_of_a_run_and_a_second_run():
    """The console and the file logger's lines of run 0, and the console of run 1."""

    def write(file, arm, rng):
        took = 100 * noise(rng, 40, 0.02)
        verl(file, took)
        if file[1] == "0":
            verl_file_logger(f"{arm}0.jsonl", took)

    return [f"{word},{word[0]}0.jsonl" for word in arms(2, write)]


@case("+", 1.2, EQUAL_WORK, says=["too few|fewer than half|left out"])
def a_seed_failed():
    """One of six runs ended after 3 steps of 30: it alone is left out."""

    def write(file, arm, rng):
        steps = 3 if file == "b2.log" else 30
        lengths = responses(rng, steps)
        verl(file, seconds_of(lengths) * noise(rng, steps) / of(arm, 1.0, 1.2), lengths)

    return arms(3, write)


@case("+", 1.2, EQUAL_WORK, says=["2 runs"])
def a_log_is_a_copy():
    """One log of three is a copy of another: two runs."""
    words = arms(3, at_speed(1.2, 30))
    shutil.copy("a0.log", "a1.log")
    return words


@case("~ =", 1.0, says=["a2|left out"])
def steps_grow_and_a_run_is_short():
    """Identical engines; one run has 20 of 100 steps, and does not shorten the others."""

    def write(file, arm, rng):
        steps = 20 if file == "a2.log" else 100
        verl(file, (10 + 0.3 * np.arange(steps)) * noise(rng, steps))

    return arms(3, write)


@case("+", 1.2)
def steps_grow_and_a_run_is_shorter():
    """One run has 60 of 100 steps: all are compared over 60."""

    def write(file, arm, rng):
        steps = 60 if file == "a2.log" else 100
        verl(file, (10 + 0.3 * np.arange(steps)) * noise(rng, steps) / of(arm, 1.0, 1.2))

    return arms(3, write)


@case("~ =", within=0.35, says=["step counters"])
def counters_of_other_gaps_and_unequal_lengths():
    """Identical engines whose steps grow: 60 steps counted by 1, and 40 counted by 4."""

    def write(file, arm, rng):
        steps = of(arm, 60, 40)
        took = (10 + 0.5 * np.arange(1, steps + 1)) * noise(rng, steps, 0.02)
        table(file, **numbered(took, each=of(arm, 1, 4)))

    return arms(3, write, "csv")


@case("~", says=["step counters"])
def a_log_leaves_steps_out():
    """Identical engines whose steps grow; one arm logs every fourth step alone, of 100."""

    def write(file, arm, rng):
        columns = numbered((10 + 0.3 * np.arange(1, 101)) * noise(rng, 100, 0.02))
        every = of(arm, 1, 4)
        table(file, **{name: values[every - 1 :: every] for name, values in columns.items()})

    return arms(3, write, "csv")


def one_step_longer(times, runs, lengths_known):
    """Equal engines, but step 11 of run a0 is `times` as long."""

    def write(file, arm, rng):
        lengths = responses(rng, 20)
        took = seconds_of(lengths) * noise(rng, 20)
        took[10] *= times if file == "a0.log" else 1
        verl(file, took, lengths if lengths_known else None)

    return arms(runs, write)


@case("~ =", says=["step 11"])
def one_step_is_100_times_as_long():
    """Three runs an arm; the step is left out or decides nothing, and is named."""
    return one_step_longer(120, 3, False)


@case("~", says=["step 11", "decide"])
def one_step_is_20_times_as_long():
    """Three runs an arm."""
    return one_step_longer(20, 3, False)


@case("~", says=["step 11", "decide"], says_not=["likely"])
def one_step_of_one_run_is_20_times_as_long():
    """One run an arm: nothing is likely where one step decides."""
    return one_step_longer(20, 1, True)


@case("~", says=["step 11", "decide"], says_not=["likely"])
def one_step_of_one_run_is_6_times_as_long():
    """One run an arm: nothing is likely where one step decides."""
    return one_step_longer(6, 1, True)


@case("~", says=["step 11", "decide"])
def requeued_runs_in_one_file():
    """Equal engines; one arm's logs were appended by three requeues, and each start takes 170 s more."""

    def write(file, arm, rng):
        lengths = responses(rng, 40)
        took = seconds_of(lengths) * noise(rng, 40)
        took[:: of(arm, 10, 40)] += 170
        verl(file, took, lengths)

    return arms(3, write)


@case("+", 1.5, EQUAL_WORK, says=["step 11"])
def a_long_step_in_each_arm():
    """One step of a run of each arm is 8 times as long: named, and the ratio is not theirs."""

    def write(file, arm, rng):
        lengths = responses(rng, 40)
        took = seconds_of(lengths) * noise(rng, 40) / of(arm, 1.0, 1.5)
        verl(file, took * np.where(np.arange(40) == (10 if file[1] == "0" else -1), 8, 1), lengths)

    return arms(5, write)


def evaluating(timer):
    """Arm `a` evaluates for 40 s in every fifth step; without it 50 s against 52 s."""

    def write(file, arm, rng):
        took = of(arm, 50, 52) * noise(rng, 30)
        timers = [{name: share * seconds for name, share in TIMERS.items()} for seconds in took]
        pause = np.where(np.arange(30) % 5 == 4, of(arm, 40.0, 0.0), 0.0)
        if timer:
            timers = [own | {timer: seconds} if seconds else own for own, seconds in zip(timers, pause, strict=True)]
        verl(file, took + pause, timers=timers, head="verl==0.5\n")

    return arms(3, write)


@case("-", 50 / 52, PER_STEP, within=0.015)
def evaluations_in_some_steps():
    """A timed evaluation is not the engine's."""
    return evaluating("testing")


@case("~", says=["median steps point to the other arm"])
def evaluations_in_no_timer():
    """Seconds in no timer decide: the median steps differ the other way."""
    return evaluating("")


@case("+", 1.25, says=["wall clock"], says_not=[EQUAL_WORK + " ("])
def bars_alone():
    """TRL's rows without step_time: the seconds are the bar's wall clock."""

    def write(file, arm, rng):
        trl_bars(file, of(arm, 50, 40) * noise(rng, 40))

    return arms(3, write)


@case("~ - x", says=["wall clock"])
def bars_with_evaluations():
    """The same, and one arm evaluates for 40 s after every fifth step: without it 0.96x."""

    def write(file, arm, rng):
        pause = np.where(np.arange(40) % 5 == 4, of(arm, 40.0, 0.0), 0.0)
        trl_bars(file, of(arm, 50, 52) * noise(rng, 40) + pause)

    return arms(3, write)


@case("~ =", within=0.6)
def rows_of_five_steps_against_rows_of_one():
    """Identical engines whose lengths grow; no bar gives the steps of a row."""

    def write(file, arm, rng):
        lengths = responses(rng, 60, typical=300 * 1.02 ** np.arange(60), cap=4096)
        trl(file, seconds_of(lengths) * noise(rng, 60), lengths, every=of(arm, 5, 1))

    return arms(3, write)


@case("+", 1.06, within=0.01)
def warm_up_with_its_flag():
    """The first steps of one arm still compile; --warmup leaves them out."""
    tail = np.array([60, 10, 9, 8, 7, 5, 3, 2, 1, 0.0])

    def write(file, arm, rng):
        verl(file, (of(arm, 50, 47) + of(arm, 0, tail)) * noise(rng, 10, 0.002))

    return [*arms(5, write), "--warmup", "8"]


@case("~", says=["--warmup"], says_not=["likely"])
def warm_up_of_one_run():
    """One run an arm; without its warm-up the slower arm is the faster one."""
    tail = np.array([60, 40, 30, 25, 20, 15, 10, 5, 3, 2, 1, 0.0])

    def write(file, arm, rng):
        lengths = responses(rng, 12)
        verl(file, (seconds_of(lengths) / of(arm, 1.0, 1.1) + of(arm, 0, tail)) * noise(rng, 12, 0.004), lengths)

    return arms(1, write)


@case("+", 1.2, PER_STEP)
def steps_become_faster_in_both():
    """Responses become shorter in both arms: no warm-up."""

    def write(file, arm, rng):
        verl(file, (100 - 1.0 * np.arange(40)) * noise(rng, 40) / of(arm, 1.0, 1.2))

    return arms(3, write)


# One run.


@case("~", 1.12, EQUAL_WORK, says_not=["likely"])
def one_run_within_the_spread():
    """Repeated runs differ by up to 16%."""
    return arms(1, at_speed(1.12, 40))


@case("~", 1.12, EQUAL_WORK, says=["likely faster", "8%"])
def one_run_with_a_smaller_spread():
    """The user knows that repeated runs differ by less."""
    return [*arms(1, at_speed(1.12, 40)), "--spread", "8%"]


@case("~", says_not=["likely"])
def one_run_of_few_steps():
    """Nothing is likely from fewer than ten steps."""
    return arms(1, at_speed(2.0, 9))


@case("~", 2.0, PER_STEP, says_not=["likely"])
def one_run_without_lengths():
    """Nothing is likely where equal work is not shown."""
    return arms(1, lambda file, arm, rng: verl(file, of(arm, 100, 50) * noise(rng, 30)))


@case("~", 2.0, EQUAL_WORK, within=0.05, says=["tensor"], says_not=["likely"])
def one_run_on_unequal_terms():
    """Another tensor parallel size."""

    def write(file, arm, rng):
        lengths = responses(rng, 30)
        parallel = {"actor_rollout_ref.rollout.tensor_model_parallel_size": of(arm, 2, 4)}
        head = command(of(arm, "vllm", "sglang"), **parallel)
        verl(file, seconds_of(lengths) * noise(rng, 30) / of(arm, 1.0, 2.0), lengths, head=head)

    return arms(1, write)


@case("~", 1.0, EQUAL_WORK, says_not=["likely"])
def one_run_against_five():
    """Equal engines: five runs do not show how much the one could differ."""
    return arms((1, 5), at_speed(1.0, 30))


@case("+", 1.25, EQUAL_WORK)
def three_arms():
    """A third arm with one run does not change the second's answer."""
    words = arms(3, at_speed(1.25))
    at_speed(1.5)("c0.log", "b", np.random.default_rng(3))
    return [*words, "c=c0.log"]


@case("+", 1.25, EQUAL_WORK)
def logs_in_a_folder_with_spaces():
    """Names of folders may have spaces."""
    words = arms(3, at_speed(1.25))
    Path("my runs").mkdir()
    for file in Path().glob("*.log"):
        file.rename(Path("my runs", file.name))
    return [word.replace("=", "=my runs/").replace(",", ",my runs/") for word in words]
