# Prepares data and model once for all arms, with the libraries of one stack.
rule inputs:
    input:
        # ancient: verifying a stack again does not change it, and running jobs read these files.
        stack=ancient(lambda wildcards: PLAN.inputs_stack_file),
        local=lambda wildcards: PLAN.local_files(wildcards.inputs_id),
    output:
        f"{RESULTS}/inputs/{{inputs_id}}/inputs.json",
    log:
        f"{RESULTS}/logs/inputs-{{inputs_id}}.log",
    conda:
        "../envs/controller/environment.yml"
    params:
        request=lambda wildcards: json.dumps(
            PLAN.inputs[wildcards.inputs_id], sort_keys=True
        ),
    shell:
        'python -P "$ROLLOUTBENCH_MODULE" workflow.cli prepare-inputs {params.request:q} --stack {input.stack:q} --out {output:q} 2> >(tee {log:q} >&2)'
