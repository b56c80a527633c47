# Writes what the report compares. No training depends on this file: with ancient(), Snakemake would ignore changed
# parameters of a run when the plan changes, and report old runs under a new configuration.
rule plan:
    input:
        START,
    output:
        f"{RESULTS}/plan.json",
    log:
        f"{RESULTS}/logs/plan.log",
    localrule: True
    conda:
        "../envs/controller/environment.yml"
    params:
        # Snakemake's configuration with its overrides. Its order is the order of the arms in the report and of the
        # factors in a run's id. A function, because Snakemake does not expand braces in its value.
        config=lambda wildcards: json.dumps(config),
        # What the configuration names and does not contain, as a script's text, changes with this alone.
        fingerprint=PLAN.fingerprint,
    shell:
        'python -P "$ROLLOUTBENCH_MODULE" workflow.cli write-plan {params.config:q} --out {output:q} 2> {log:q}'
