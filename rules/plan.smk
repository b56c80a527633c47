# The plan as files: plan.json, and beside it every run's spec.json and every input's request.json.
rule plan:
    output:
        f"{RESULTS}/plan.json",
    log:
        f"{RESULTS}/logs/plan.log",
    localrule: True
    conda:
        "../envs/controller/environment.yml"
    params:
        # The command reads the same configuration that Snakemake was given, overrides included.
        config=json.dumps(config, sort_keys=True),
    shell:
        "python -m workflow.cli write-plan {params.config:q} --out {output:q} 2> {log:q}"
