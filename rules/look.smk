# Looks at the verdict after each pair of runs: the next pair is trained only while it is not resolved.
checkpoint look:
    input:
        plan=f"{RESULTS}/plan.json",
        steps=lambda wildcards: expand(
            f"{RESULTS}/runs/{{run_id}}/steps.parquet",
            run_id=PLAN.first_pairs(int(wildcards.pairs)),
        ),
    output:
        f"{RESULTS}/looks/{{pairs}}.json",
    log:
        f"{RESULTS}/logs/look-{{pairs}}.log",
    # It withdraws jobs, which a compute node may not be able to do.
    localrule: True
    conda:
        "../envs/controller/environment.yml"
    params:
        # A function, because Snakemake does not expand braces in its value.
        config=lambda wildcards: json.dumps(config),
    shell:
        'python -P "$ROLLOUTBENCH_MODULE" workflow.cli write-look {params.config:q} --plan {input.plan:q} --pairs {wildcards.pairs}'
        " --out {output:q} 2> >(tee {log:q} >&2)"
