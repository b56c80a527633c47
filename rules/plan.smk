# What the report is to compare. Nothing that trains depends on this file: with ancient() Snakemake would not look at
# a run's own parameters when the plan is written anew, and report old runs under a new configuration.
rule plan:
    output:
        f"{RESULTS}/plan.json",
    log:
        f"{RESULTS}/logs/plan.log",
    localrule: True
    conda:
        "../envs/controller/environment.yml"
    params:
        # The command reads the same configuration that Snakemake was given, overrides included and in its order, which
        # is the order of the arms in the report and of the factors in a run's id.
        # A function's value is taken as it stands: a brace in a text is no wildcard.
        config=lambda wildcards: json.dumps(config),
    shell:
        "python -m workflow.cli write-plan {params.config:q} --out {output:q} 2> {log:q}"
