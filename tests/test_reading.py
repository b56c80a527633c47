"""What `rolloutbench compare` reads of small logs as people have them: each once read wrongly, or refused."""

import json
import pprint

import pytest

FULL = {"timing_s/gen": 0.7, "timing_s/update_actor": 0.25, "timing_s/step": 1.0}
FULL |= {"response_length/mean": 3.0, "response_length/max": 6.0, "response_length/min": 1.0, "prompt_length/mean": 1.0}
FULL |= {"perf/total_num_tokens": 64.0, "actor/entropy": 0.1, "actor/grad_norm": 0.2, "critic/score/mean": 0.01}


@pytest.fixture
def compared(rolloutbench):
    return lambda *words: rolloutbench("compare", *words, "--verdict-only")


@pytest.fixture
def answer(compared):
    """Everything that is said of arms, in one line, and the ratio."""

    def told(*words):
        said = compared(*words, "--json")
        assert said.code == 0, said.err
        (arm,) = json.loads(said.out)["arms"]
        text = " ".join(f"{said.err} {json.dumps(arm)}".split())
        return text, arm["ratios"][0]["value"][0] if arm["ratios"] else None

    return told


def verl_step(step, seconds):
    """A step's line as verl prints it."""
    numbers = " - ".join(f"{name}:{share * seconds:.3f}" for name, share in FULL.items())
    return f"(TaskRunner pid=1) step:{step} - {numbers}\n"


def verl(file, seconds, configurations=None):
    """A log with a printed configuration before some of its steps."""
    text = ""
    for step, took in enumerate(seconds, start=1):
        if step in (configurations or {}):
            lines = pprint.pformat(configurations[step]).splitlines()
            text += "".join(f"(TaskRunner pid=1) {line}\n" for line in lines)
        text += verl_step(step, took)
    file.write_text(text)


def settings(**trainer):
    rollout = {"name": "vllm", "n": 8, "gpu_memory_utilization": 0.6}
    model = {"path": trainer.pop("model", "/data/models/qwen")}
    ours = {"n_gpus_per_node": 8, "nnodes": 1, "experiment_name": "x", "resume_mode": "auto", "total_epochs": 1}
    return {"actor_rollout_ref": {"model": model, "rollout": rollout}, "trainer": ours | trainer}


def test_a_wandb_folder_without_its_run_is_read_by_its_console(tmp_path, answer):
    for name, took in (("a", 50.0), ("b", 40.0)):
        files = tmp_path / "wandb" / f"run-20250101_00000{len(name)}-abcd123{name}" / "files"
        files.mkdir(parents=True)
        verl(files / "output.log", [took + 0.1 * n for n in range(6)])
        engine = {"rollout": {"name": {"a": "vllm", "b": "sglang"}[name]}}
        config = {"actor_rollout_ref": {"desc": None, "value": engine}, "trainer": {"value": {"n_gpus_per_node": 8}}}
        (files / "config.yaml").write_text(json.dumps(config))
        (files / "requirements.txt").write_text("verl==0.5.0\n")
    folders = sorted((tmp_path / "wandb").iterdir())
    text, ratio = answer(*folders)
    assert "vllm: verl 0.5, vllm; 1 run, 6 steps" in text and "sglang: verl 0.5, sglang; 1 run, 6 steps" in text
    assert ratio == pytest.approx(50.3 / 40.3, rel=0.01)


def test_one_number_a_line_is_a_step_of_verl(tmp_path, answer):
    for name, took in (("a", 93.5), ("b", 74.8)):
        steps = (
            f"step:{step}\n - timing_s/gen:{took / 4:.1f}\n - timing_s/step:{took + step / 10:.1f}\n"
            for step in range(1, 7)
        )
        (tmp_path / f"{name}.log").write_text("Guide to a step:\n" + "".join(steps))
    text, ratio = answer("a.log", "b.log")
    assert "6 steps" in text and ratio == pytest.approx(93.9 / 75.2, rel=0.01)


def trl(file, took, rows_at_once, last=200, of=200, every=5):
    """TRL's console with stderr's bar of each step, and stdout's rows only when its buffer is full or flushed."""
    text, waiting = "", []
    for step in range(1, last + 1):
        whole = int(step * took)
        clock = f"{whole // 3600}:{whole // 60 % 60:02d}:{whole % 60:02d}"
        text += f"\r {100 * step // of}%|###       | {step}/{of} [{clock}<00:00, {took:.2f}s/it]"
        if step % every == 0:
            row = {"loss": 0.01, "learning_rate": 1e-06, "reward": 0.5, "completion_length": 117.0 + step % 3}
            waiting.append(f"{row | {'epoch': step / 400}}\n")
        if len(waiting) >= rows_at_once:
            text, waiting = text + "".join(waiting), []
    file.write_text(text + "\n" + "".join(waiting) * (last == of))


@pytest.mark.parametrize(("rows_at_once", "last"), [(12, 200), (100, 200), (8, 163)])
def test_rows_of_a_buffered_stdout_are_numbered_by_the_bars(tmp_path, answer, rows_at_once, last):
    """Rows of five steps each, in blocks behind several bars: also of a training that was killed."""
    for name, took in (("a", 40.0), ("b", 32.0)):
        trl(tmp_path / f"{name}.log", took, rows_at_once, last)
    text, ratio = answer("a.log", "b.log")
    assert f"{200 if last == 200 else 160} steps" in text and ratio == pytest.approx(1.25, rel=0.01)


def nemo(file, took, backend="vllm", model="google/gemma-3-1b-it", prompts=32, **second):
    config = {
        "cluster": {"gpus_per_node": 8, "num_nodes": 1},
        "grpo": {"num_generations_per_prompt": 16, "num_prompts_per_step": prompts},
        "logger": {"log_dir": "logs/exp_001"},
        "policy": {"generation": {"backend": backend, "max_new_tokens": 1024}, "model_name": model},
    }
    text = f"Loaded configuration from: x.yaml\nFinal config:\n{pprint.pformat(config)}\n"
    for step in range(1, 9):
        if step == 5 and second:
            again = config | {"cluster": second["cluster"], "logger": {"log_dir": "logs/exp_002"}}
            text += f"Final config:\n{pprint.pformat(again)}\n"
        text += (
            f"========================= Step {step}/8 =========================\n  • Mean Generation Length: 600.5\n"
        )
        text += f"  • Total step time: {took + step / 10:.2f}s\n  • generation: {0.7 * took:.2f}s (70.0%)\n"
    file.write_text(text)


def test_the_configuration_that_nemo_rl_prints_is_read(tmp_path, answer, compared):
    nemo(tmp_path / "a.log", 40.0)
    nemo(tmp_path / "half.log", 24.0, model="google/gemma-3-4b-it", prompts=16)
    shown = compared("a.log", "half.log")
    assert (
        "a: nemo-rl (read as 0.7), vllm; " in shown.out
        and "gemma-3-1b-it" in shown.out
        and "gemma-3-4b-it" in shown.out
    )
    nemo(tmp_path / "half.log", 24.0, prompts=16)
    text, _ = answer("a.log", "half.log")
    assert "512" in text and "256" in text


def test_an_engine_against_the_word_of_its_log_is_refused(tmp_path, compared):
    nemo(tmp_path / "a.log", 40.0)
    nemo(tmp_path / "b.log", 40.0)
    refused = compared("sglang=a.log", "vllm=b.log")
    assert refused.code == 1 and refused.err.count("\n") == 1
    assert "a.log is a run of vllm, and its arm is named sglang" in refused.err


@pytest.mark.parametrize(
    ("again", "counted"),
    [
        (settings(n_gpus_per_node=4), 10),
        (settings(model="/data/models/other"), 10),
        # Names, places, and how long it trains.
        (settings(experiment_name="x", total_epochs=3, model="/scratch/qwen", default_local_dir="/scratch/x"), 20),
    ],
)
def test_steps_of_another_configuration_are_left_out_and_named(tmp_path, answer, again, counted):
    """b goes on at step 11 on half of its GPUs, and takes twice as long."""
    seconds = [50.0 + 0.1 * n for n in range(20)]
    verl(tmp_path / "a.log", seconds, {1: settings()})
    verl(
        tmp_path / "b.log",
        seconds[:10] + [(100 if counted == 10 else 50) + s for s in range(10)],
        {1: settings(), 11: again},
    )
    text, ratio = answer("a.log", "b.log")
    assert ("from step 11 on another configuration: " in text) == (counted == 10)
    assert ("n_gpus_per_node 8 to 4" in text) == ("4" in str(again["trainer"]["n_gpus_per_node"]))
    if counted == 10:
        assert ratio == pytest.approx(1.0, rel=0.01)


def test_another_configuration_of_nemo_rl_counts_from_its_step_on(tmp_path, answer):
    nemo(tmp_path / "a.log", 40.0)
    nemo(tmp_path / "b.log", 40.0, cluster={"gpus_per_node": 4, "num_nodes": 1})
    text, _ = answer("a.log", "b.log")
    assert "from step 5 on another configuration: cluster.gpus_per_node 8 to 4" in text


def generations(file, took, repeats, steps=12, every=4):
    """TRL with num_iterations 4: one step of four generates, and the others log no lengths, or the same again."""
    text, tokens = "", 0
    for step in range(1, steps + 1):
        generates = step % every == 1
        if generates:
            tokens += 6400 + 10 * step
            new = {"num_tokens": float(tokens), "completions/mean_length": 100.0 + step, "reward": 0.2 + step / 100}
        seconds = (0.7 if generates else 0.1) * every * took * (1 + step / 1000)
        row = {"loss": 0.01, "learning_rate": 1e-06, **(new if generates or repeats else {}), "step_time": seconds}
        text += f"{row}\n"
    file.write_text(text)


@pytest.mark.parametrize("repeats", [False, True])
def test_steps_that_share_a_generation_count_together_or_not_at_all(tmp_path, answer, repeats):
    """The warm-up of one step and the end of the other log would cut generations."""
    generations(tmp_path / "a.log", 100.0, repeats)
    generations(tmp_path / "b.log", 70.0, repeats, steps=14)
    text, ratio = answer("a.log", "b.log")
    assert ratio == pytest.approx(10 / 7, rel=0.002), text


def test_rows_with_parts_of_generations_are_said(tmp_path, answer):
    for name, took in (("a", 100.0), ("b", 70.0)):
        text = ""
        for step in range(21):
            # Three rows of seven generate.
            new = {"reward": 0.5, "completions/mean_length": 9.0 + step} if step % 7 < 3 else {}
            row = {"loss": 0.01, "learning_rate": 1e-06, **new, "step_time": took + 90 * bool(new) + step}
            text += f"{row}\n"
        (tmp_path / f"{name}.log").write_text(text)
    assert "share a generation of responses" in answer("a.log", "b.log")[0]


def test_a_requeued_run_that_trains_longer_is_one_run(tmp_path, answer):
    seconds = [50.0 + 0.1 * n for n in range(20)]
    verl(tmp_path / "a.log", seconds, {1: settings()})
    lines = (tmp_path / "a.log").read_text().splitlines(keepends=True)
    head = [line for line in lines if " step:" not in line]
    steps = [line for line in lines if " step:" in line]
    longer = [line.replace("'total_epochs': 1", "'total_epochs': 3") for line in head]
    (tmp_path / "b1.log").write_text("".join(head + steps[:10]))
    (tmp_path / "b2.log").write_text("".join(longer + steps[10:]))
    text, ratio = answer("a=a.log", "b=b1.log,b2.log")
    assert "are one run" in text and ratio == pytest.approx(1.0, rel=0.01)
