# Train one run: submit or attach, wait, verify. The only output is done.json; whatever else the run leaves is not
# Snakemake's, so that no rerun can delete it. Local: the launcher waits, the work is in the job that it submits.
rule train:
    input:
        stack=lambda wildcards: PLAN.stack_file(wildcards.run_id),
        inputs=lambda wildcards: PLAN.inputs_file(wildcards.run_id),
    output:
        f"{RESULTS}/runs/{{run_id}}/done.json",
    log:
        f"{RESULTS}/runs/{{run_id}}/launcher.log",
    # In the plan's order: equal seeds of all arms one after another, so that a machine's drift falls on all alike.
    priority: lambda wildcards: PLAN.priority(wildcards.run_id)
    localrule: True
    conda:
        "../envs/controller/environment.yml"
    threads: 2
    resources:
        train_slots=1,
    params:
        folder=subpath(output[0], parent=True),
        # Decides, with the stack's lock in its path and the inputs, whether there is anything to train.
        spec=lambda wildcards: json.dumps(
            PLAN.runs[wildcards.run_id].spec, sort_keys=True
        ),
    shell:
        "python -m workflow.cluster.launcher {params.folder:q}"
        " --spec {params.spec:q} --inputs {input.inputs:q} --stack {input.stack:q}"
        " --cpus {threads} --log {log:q}"
