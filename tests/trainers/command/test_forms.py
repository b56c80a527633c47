"""Forms in which people write launch scripts: each starts as it is, with another engine in the training's words.

The forms are those of public examples of verl, TRL, ms-swift, OpenRLHF, NeMo-RL and slime, written anew and short.
Programs are stand-ins that note how they were called; those that start others start them.
"""

import os
import subprocess

import pytest

from trainers.command.driver import keep, prepared
from workflow.config.plan import load_plan

from .script_bench import program

NOTE = '#!/bin/bash\nprintf \'%s\\n\' "${0##*/} $*" >> "$BENCH/calls"\n'
# Options before the program that these start.
STARTS = (
    NOTE
    + """while [ $# -gt 0 ]; do
  case "$1" in --) shift; break;; run|exec|job|submit|pull) shift;; -*) shift;; *) break;; esac
done
"""
)
PROGRAMS = {
    **dict.fromkeys(("python3", "torchrun", "swift"), NOTE),
    **dict.fromkeys(("srun", "ray"), STARTS + '[ $# -eq 0 ] || exec "$@"\n'),
    # The image comes before the program.
    "apptainer": STARTS + '[ $# -lt 2 ] || { shift; exec "$@"; }\n',
}
VERL = "actor_rollout_ref.rollout.name"
FORMS = {
    "backslashes": (f"set -x\npython3 -m verl.trainer.main_ppo \\\n  trainer.n=1 \\\n  {VERL}=vllm $@\n", VERL),
    "a variable in the engine's word": (
        f"ENGINE=${{ENGINE:-vllm}}\npython3 -m verl.trainer.main_ppo {VERL}=$ENGINE exp=${{ENGINE}}_1\n", "ENGINE"),
    "functions": (
        f"train() {{\n  local name=$1; shift\n  python3 -m verl.trainer.main_ppo {VERL}=vllm exp=$name \"$@\"\n}}\n"
        "main() { train first; }\nmain \"$@\"\n", VERL),
    "arrays": (
        f"DATA=(data.train=a data.val=b)\nROLLOUT=(\n  {VERL}=vllm  # engine\n  x=1\n)\n"
        "python3 -m verl.trainer.main_ppo \"${DATA[@]}\" \"${ROLLOUT[@]}\" \"$@\"\n", VERL),
    "torchrun": (
        "torchrun --nproc_per_node=8 --master_port=$((29500 + RANDOM % 10)) train.py --rollout vllm\n", "--rollout"),
    "ray job submit": (
        "ray start --head --num-gpus 8\nray job submit --address=http://127.0.0.1:8265 \\\n"
        "  --runtime-env-json='{\"env_vars\": {\"A\": \"1\"}}' \\\n"
        f"  -- python3 -m openrlhf.train {VERL}=vllm\n", VERL),
    "srun in a batch script": (
        "#SBATCH --nodes=2\n#SBATCH --gres=gpu:8\ncd \"$SLURM_SUBMIT_DIR\"\n"
        "srun --ntasks-per-node=1 apptainer exec --nv image.sif bash -c 'python3 train.py --engine vllm'\n",
        "--engine"),
    "a here-document that becomes a script": (
        f"cat > inner.sh <<'EOF'\npython3 -m verl.trainer.main_ppo {VERL}=vllm\nEOF\nbash inner.sh\n", VERL),
    "in the background, with wait": (
        f"nohup python3 -m verl.trainer.main_ppo {VERL}=vllm > train.log 2>&1 &\nPID=$!\nwait $PID\n", VERL),
    "case by the first argument": (
        "case \"${1:?engine}\" in\n  vllm) ARGS='--engine vllm' ;;\n  sglang) ARGS='--engine sglang' ;;\n"
        "  *) echo unknown; exit 1 ;;\nesac\npython3 train.py $ARGS\n", "1"),
    "in the script's own folder": (
        "SCRIPT_DIR=$(cd \"$(dirname \"${BASH_SOURCE[0]}\")\" && pwd)\ncd \"$(dirname $0)/..\"\n"
        "source \"$SCRIPT_DIR/model.sh\"\nswift rlhf --rlhf_type grpo --use_vllm true --engine vllm $MODEL_ARGS\n",
        "--engine"),
}  # fmt: skip


def start(text, words, folder, patch):
    """Run a script's copy as the driver does, with these words."""
    for one, does in PROGRAMS.items():
        program(folder / "bin" / one, does)
    script = program(folder / "project" / "scripts" / "run.sh", text)
    (script.parent / "model.sh").write_text("MODEL_ARGS='--model m'\n")
    patch.setenv("PATH", f"{folder / 'bin'}:/usr/bin:/bin")
    patch.setenv("BENCH", str(folder))
    for variable in [name for name in os.environ if name.startswith("SLURM_")]:
        patch.delenv(variable)
    patch.setenv("SLURM_SUBMIT_DIR", str(script.parent))
    arm = {"trainer": "command", "engine": "sglang", "options": {"script": str(script), "words": words}}
    (run,) = load_plan({"experiment": "e", "baseline": "a", "arms": {"a": arm}}).runs.values()
    run_folder = folder / "results" / "e" / "runs" / run.run_id
    attempt = run_folder / "attempts" / "1"
    attempt.mkdir(parents=True)
    keep(run.spec, run_folder)
    command, cwd, environment = prepared(run.spec, attempt)
    assert script.read_text() == text
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize("form", FORMS)
def test_a_form_starts_without_an_edit(form, tmp_path, monkeypatch):
    body, name = FORMS[form]
    done = start(f"#!/bin/bash\n{body}", [f"{name}=sglang"], tmp_path, monkeypatch)
    assert done.returncode == 0, done.stderr
    called = (tmp_path / "calls").read_text().splitlines()
    trained = [call for call in called if not call.startswith(("srun", "ray", "apptainer"))]
    said = [call.replace("vllm_mode", "").replace("use_vllm", "") for call in trained]
    assert said and all("sglang" in call and "vllm" not in call for call in said), called


def test_the_first_lines_options_hold(tmp_path, monkeypatch):
    assert start("#!/bin/bash -e\nfalse\npython3 train.py\n", [], tmp_path, monkeypatch).returncode == 1
    assert not (tmp_path / "calls").exists()
