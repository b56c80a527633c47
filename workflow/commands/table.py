"""Lists the commands of `rolloutbench`: each one's function, arguments and help."""

from __future__ import annotations

from common.files import ROOT
from workflow.commands.parser import Command

COMMANDS = {
    "new": Command(
        "workflow.commands.new_from_script:new",
        "write a commented configuration, from flags or a launch script",
        "file --from --stack-python --gpus --nodes --trainer --engines --model --data --columns --rewards --steps "
        "--partition",
        "It writes only a valid configuration, and overwrites no file.",
        (
            ("new my.yaml", "a small experiment for this machine's CPU, to change"),
            ("new my.yaml --gpus 8 --partition h100", "for a node of 8 GPUs; also writes profiles/my"),
            ("new my.yaml --model ./qwen --data train.parquet --rewards mine.py:brevity", "your own parts"),
            ("new --from run.sh --engines vllm,sglang", "your launch script as an experiment (docs/howto/script.md)"),
        ),
    ),
    "check": Command(
        "workflow.commands.check_command:check",
        "say what runs and costs, what this site lacks, and what is impossible or unequal",
        "config --profile --seconds-per-step --across-nodes --json",
        "It judges by --profile, else by profiles/<experiment>, if that is in this folder, else by this machine. "
        "Without a configuration it checks this machine for all stacks.",
        (
            ("check my.yaml", "may it start here?"),
            ("check my.yaml --seconds-per-step 400", "GPU-hours at this pace"),
            ("check my.yaml --profile profiles/my --json", "by another profile; for a program"),
            ("check", "this machine and the stacks"),
            ("check --across-nodes", "submits a short job that tests a node"),
        ),
        {0: "nothing is lacking or impossible", 1: "something is lacking or impossible, or a message after `error:`"},
    ),
    "run": Command(
        "workflow.commands.start_runs:run",
        "start an experiment, or go on with it: Snakemake with the right rules and profile",
        "config options",
        "It prints Snakemake's command line first. Results come below results/ of this folder. The profile is "
        "profiles/<experiment>, if that is in this folder, else this machine's; --profile names another one.",
        (
            ("run my.yaml", "all runs, then the report"),
            ("run my.yaml --dry-run", "what would run; any option of Snakemake's"),
            ("run my.yaml --profile profiles/local", "on this machine, though profiles/<experiment> is there"),
        ),
        {0: "done; Snakemake's own codes otherwise", 1: "Snakemake failed, or a message after `error:`"},
    ),
    "status": Command(
        "workflow.commands.status:status",
        "show what each run is doing, and why it waits",
        "config --experiment --every --watch",
        "Slurm is asked at most every 30 seconds, however many status commands run.",
        (
            ("status my.yaml --watch", "a live table until all runs are finished"),
            ("status my.yaml --every 60", "prints the table every minute"),
            ("status --experiment my", "reads results/my, without the configuration"),
        ),
        {0: "done, or left with Ctrl-C (--watch, --every)"},
    ),
    "cancel": Command(
        "workflow.commands.cancel:cancel_jobs",
        "cancel an experiment's jobs, or those of some runs",
        "words --experiment --now",
        "",
        (
            ("cancel my.yaml", "all jobs of this experiment only"),
            ("cancel my.yaml sglang-s0 sglang-s1", "the jobs of two runs"),
        ),
    ),
    "report": Command(
        "workflow.commands.finished_report:report",
        "print a finished report's verdict and path",
        "config",
        "",
        (("report my.yaml", ""),),
    ),
    "compare": Command(
        "workflow.commands.compare:compare",
        "compare logs: prints the verdict, then writes the report",
        "sources --names --trainer --release --step-seconds --unit --mode --warmup --spread --report --verdict-only "
        "--open --save --json --markdown --published",
        "Trainer, engine and release come from the logs. The verdict comes first, then the flags for missing facts.",
        (
            ("compare vllm=a.log,b.log sglang=c.log,d.log", "commas separate seeds of one arm"),
            ("compare a.log b.log --names vllm,sglang --release 0.7.1", "names and release, if the logs lack them"),
            ("compare wandb:me/grpo/a1 wandb:me/grpo/b2 --open", "two runs on wandb; opens the report"),
            ("compare a.log b.log --save mine.yaml", "also writes the comparison as a configuration"),
            ("compare a.log b.log --verdict-only --json", "the verdict for a program"),
            ("compare claim.csv --published", "what a page's published means hold (docs/gallery/claims.md)"),
        ),
    ),
    "ab": Command(
        "workflow.commands.ab:ab",
        "run a training script unchanged except for one setting, once for each of its values",
        "script arguments --vary --set --python --image --names --seeds --partition --gpus --nodes --read --resume "
        "--cwd --save --start",
        "It writes a configuration, shows the lines that differ in its copy of the script, and prints the command that "
        "starts the runs. Nodes and GPUs come from the script's #SBATCH lines (docs/howto/script.md).",
        (
            ("ab run.sh --vary actor_rollout_ref.rollout.name=vllm,sglang", "two engines"),
            ("ab run.sh --vary vllm_mode=colocate,server --seeds 3", "a flag of the training, without its dashes"),
            ("ab run.sh --vary ENGINE=vllm,sglang --python ~/envs/vllm,~/envs/sglang", "each in its environment"),
            ("ab run.sh --vary ENGINE=vllm,sglang --set 'OUT=ckpt/{run}' --start", "also starts the runs"),
        ),
    ),
    "history": Command(
        "workflow.commands.draw_history:history",
        "draw the speed of finished experiments over time, and mark lasting changes",
        "folders --arm --fail-if-slower --to",
        "Experiments are compared where arm, workload and hardware are equal. Unfinished and damaged ones are named "
        "and skipped. Under 5% of the series without a change get a mark (docs/history.md).",
        (
            ("history results", "all experiments below a folder; writes history/history.html and history.json"),
            ("history nightly --arm vllm --fail-if-slower 5%", "for CI"),
        ),
        {0: "done; with --fail-if-slower: no such slowdown is marked, or too few experiments", 3: "the arm is slower"},
    ),
    # For rules; help does not list them.
    "write-plan": Command(
        "workflow.commands.rule_commands:write_plan", "", "request --out", "For rules: write plan.json."
    ),
    "write-look": Command(
        "workflow.commands.rule_commands:write_look",
        "",
        "request --plan --pairs --out",
        "For rules: look at the verdicts after so many pairs of runs.",
    ),
    "prepare-inputs": Command(
        "workflow.commands.rule_commands:prepare_inputs",
        "",
        "request --stack --out",
        "For rules: prepare data and model with a stack's libraries.",
    ),
    "resolve-settings": Command(
        "workflow.commands.rule_commands:resolve",
        "",
        "request --stack --out",
        "For rules: resolve all of a trainer's settings with its stack.",
    ),
    "write-preflight": Command(
        "workflow.commands.rule_commands:write_and_summarize",
        "",
        "request --settings --imported --setup --before --clear --out",
        "For rules: write preflight.json.",
    ),
}
NOW = {
    **dict.fromkeys(("plan", "doctor", "preflight"), "rolloutbench check"),
    **dict.fromkeys(("verdict", "headline"), "rolloutbench report"),
    "schema": f"the file {ROOT / 'workflow' / 'schemas' / 'config.schema.json'}",
}
"""What commands of earlier releases are now; those of check and report took the same arguments."""
