# Collects every number of a run into a tidy table, with its source file and line. A local rule, as imports are: a job of
# Slurm for seconds of work would wait in the queue.
rule collect:
    input:
        done=f"{RESULTS}/runs/{{run_id}}/done.json",
    output:
        f"{RESULTS}/runs/{{run_id}}/steps.parquet",
    log:
        f"{RESULTS}/runs/{{run_id}}/collect.log",
    wildcard_constraints:
        run_id=id_pattern(run_id for run_id, run in PLAN.runs.items() if run.stack),
    localrule: True
    conda:
        "../envs/controller/environment.yml"
    resources:
        import_slots=1,
    params:
        folder=subpath(output[0], parent=True),
    shell:
        'python -P "$ROLLOUTBENCH_MODULE" analysis.collect {params.folder:q} --out {output:q} 2> >(tee {log:q} >&2)'


# Reads the steps of a script's run from its own log.
rule collect_log:
    input:
        done=f"{RESULTS}/runs/{{run_id}}/done.json",
    output:
        steps=f"{RESULTS}/runs/{{run_id}}/steps.parquet",
        imported=f"{RESULTS}/runs/{{run_id}}/imported.json",
    log:
        f"{RESULTS}/runs/{{run_id}}/collect.log",
    wildcard_constraints:
        run_id=id_pattern(PLAN.own_runs),
    localrule: True
    conda:
        "../envs/controller/environment.yml"
    resources:
        import_slots=1,
    params:
        folder=subpath(output[0], parent=True),
    shell:
        'python -P "$ROLLOUTBENCH_MODULE" workflow.launch_scripts.log {params.folder:q} --out {output.steps:q} 2> >(tee {log:q} >&2)'
