from workflow.slurm.request import KEYS, RESOURCES

AS_WORDS = " ".join(f"{key}={{resources.{key}:q}}" for key in KEYS)


# Trains one run: submit or attach, wait, verify. The only output is done.json, so that Snakemake never deletes the
# run's other files. A local rule: the launcher only waits for the job that it submits.
rule train:
    input:
        START,
        # A user's script has none of these.
        stack=ancient(
            lambda wildcards: PLAN.needed_files(wildcards.run_id, PLAN.stack_file)
        ),
        checked=lambda wildcards: PLAN.needed_files(wildcards.run_id, PLAN.checked_file),
        inputs=lambda wildcards: PLAN.needed_files(wildcards.run_id, PLAN.inputs_file),
        # While something is impossible, nothing is trained. This is not preflight.json, which every change of the plan
        # rewrites: a plain input would train finished runs again, and with ancient() Snakemake does not look at a run's
        # parameters while that file is to be rewritten, and does not train a changed run.
        cleared=lambda wildcards: needed_clearance(PLAN, wildcards.run_id),
        # Settings that the trainer rejects fail before the queue.
        settings=lambda wildcards: PLAN.needed_files(
            wildcards.run_id,
            lambda run_id: f"{RESULTS}/settings/{SETTINGS_IDS[run_id]}.json",
        ),
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
        **RESOURCES,
        train_slots=1,
        # If the other rules use Slurm, training also does: it must not start on a login node.
        submit_to=lambda wildcards: getattr(workflow.executor_plugin, "name", "local"),
        # From the experiment; the launcher rejects a profile that contradicts them.
        gres=lambda wildcards: default_gres(
            PLAN.runs[wildcards.run_id].spec["workload"]
        ),
        nodes=lambda wildcards: PLAN.runs[wildcards.run_id].spec["workload"]["nodes"],
        cpus_per_task=lambda wildcards, threads: threads,
    params:
        folder=subpath(output[0], parent=True),
        # With the stack's lock and the inputs, this decides whether a run must be trained.
        spec=lambda wildcards: json.dumps(
            PLAN.runs[wildcards.run_id].spec, sort_keys=True
        ),
    shell:
        'python -P "$ROLLOUTBENCH_MODULE" workflow.head.launcher {params.folder:q} --spec {params.spec:q} --inputs {input.inputs:q}'
        " --stack {input.stack:q} --log {log:q} --resources "
        f"{AS_WORDS}"
