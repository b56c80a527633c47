# Train one run: submit or attach, wait, verify. The only output is done.json; whatever else the run leaves is not
# Snakemake's, so that no rerun can delete it. Local: the launcher waits, the work is in the job that it submits.
rule train:
    input:
        plan=ancient(f"{RESULTS}/plan.json"),
        stack=lambda wildcards: ancient(PLAN.stack_file(wildcards.run_id)),
        inputs=lambda wildcards: PLAN.inputs_file(wildcards.run_id),
    output:
        f"{RESULTS}/runs/{{run_id}}/done.json",
    log:
        f"{RESULTS}/runs/{{run_id}}/launcher.log",
    localrule: True
    conda:
        "../envs/controller/environment.yml"
    threads: 2
    resources:
        train_slots=1,
    params:
        folder=subpath(output[0], parent=True),
        fingerprint=lambda wildcards: PLAN.runs[wildcards.run_id].fingerprint,
    shell:
        "python -m workflow.cluster.launcher {params.folder:q}"
        " --fingerprint {params.fingerprint} --inputs {input.inputs:q} --stack {input.stack:q}"
        " --cpus {threads} --log {log:q}"
