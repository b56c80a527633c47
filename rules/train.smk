from workflow.slurm.request import KEYS, RESOURCES

# What does not depend on the run is in the command only if a profile gives it: Snakemake evaluates and prints each value
# for each run. `default-resources` of a profile are for the other rules.
GIVEN = site_of(workflow, TRAIN).train
NOT_OF_OTHERS = ("mem_mb", "runtime", "slurm_partition", "slurm_account")
DEFAULTS = {key: RESOURCES[key] for key in RESOURCES if key in (*GIVEN, *NOT_OF_OTHERS)}
WORDS = {
    **{
        key: f"{{resources.{key}:q}}"
        for key in KEYS
        if key in DEFAULTS or key not in (*RESOURCES, "train_slots")
    },
    **({} if "cpus_per_task" in GIVEN else {"cpus_per_task": "{threads}"}),
}
AS_WORDS = " ".join(f"{key}={value}" for key, value in WORDS.items())
SPECS = {
    run_id: json.dumps(run.spec, sort_keys=True) for run_id, run in PLAN.runs.items()
}
WORKLOADS = {run_id: run.spec["workload"] for run_id, run in PLAN.runs.items()}


# Trains one run: submit or attach, wait, verify. The only output is done.json, so that Snakemake never deletes the
# run's other files. A local rule: the launcher only waits for the job that it submits.
rule train:
    input:
        # The file of the preflight that lets it train, and its settings. Those that the trainer rejects fail before the
        # queue. While something is impossible, nothing is trained. It is not preflight.json, which every change of the
        # plan rewrites: a plain input would train finished runs again, and with ancient() Snakemake does not look at a
        # run's parameters while that file is to be rewritten, and does not train a changed run.
        lambda wildcards: START(wildcards)
        + needed_before(PLAN, wildcards.run_id, SETTINGS_IDS),
        # A user's script has none of these.
        stack=ancient(
            lambda wildcards: PLAN.needed_files(wildcards.run_id, PLAN.stack_file)
        ),
        inputs=lambda wildcards: PLAN.needed_files(wildcards.run_id, PLAN.inputs_file),
    output:
        f"{RESULTS}/runs/{{run_id}}/done.json",
    log:
        f"{RESULTS}/runs/{{run_id}}/launcher.log",
    wildcard_constraints:
        run_id=id_pattern(PLAN.runs),
    # All arms of a seed one after another, in turns by seed, so that a machine's drift affects all arms equally.
    priority: lambda wildcards: PLAN.priorities[wildcards.run_id]
    # The launcher retries; --retries would also submit cancelled jobs again.
    retries: 0
    localrule: True
    conda:
        "../envs/controller/environment.yml"
    threads: 2
    # Requested from the scheduler; set by set-resources in a site's profile (docs/slurm.md). Resources are not rerun
    # triggers: another partition or limit retrains nothing.
    resources:
        **DEFAULTS,
        train_slots=1,
        # If the other rules use Slurm, training also does: it must not start on a login node.
        submit_to=lambda wildcards: getattr(workflow.executor_plugin, "name", "local"),
        # From the experiment; the launcher rejects a profile that contradicts them.
        gres=of_run({run_id: default_gres(load) for run_id, load in WORKLOADS.items()}),
        nodes=of_run({run_id: load["nodes"] for run_id, load in WORKLOADS.items()}),
    params:
        folder=subpath(output[0], parent=True),
        # With the stack's lock and the inputs, this decides whether a run must be trained.
        spec=lambda wildcards: SPECS[wildcards.run_id],
    shell:
        'python -P "$ROLLOUTBENCH_MODULE" workflow.head.launcher {params.folder:q} --spec {params.spec:q} --inputs {input.inputs:q}'
        " --stack {input.stack:q} --log {log:q} --resources "
        f"{AS_WORDS}"
