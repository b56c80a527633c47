import re

# The runs that are read, not trained; where there are none, a pattern that nothing matches.
IMPORTED = "|".join(map(re.escape, PLAN.imports)) or "(?!)"


# One run that was trained elsewhere, read from what it logged: its steps, tidy, and what its sources say of it.
rule import_run:
    input:
        # A name with a brace would be a pattern to Snakemake; `state` below watches those, too.
        lambda wildcards: [
            file for file in PLAN.import_files(wildcards.run_id) if "{" not in file
        ],
    output:
        steps=f"{RESULTS}/runs/{{run_id}}/steps.parquet",
        imported=f"{RESULTS}/runs/{{run_id}}/imported.json",
    log:
        f"{RESULTS}/runs/{{run_id}}/import.log",
    wildcard_constraints:
        run_id=IMPORTED,
    # A node of a cluster may reach no service's API, and no folder of somebody's own.
    localrule: True
    conda:
        "../envs/controller/environment.yml"
    # Each reads whole logs into memory, on the machine that runs Snakemake; a profile says how many at once.
    resources:
        import_slots=1,
    params:
        spec=lambda wildcards: json.dumps(
            PLAN.imports[wildcards.run_id].spec, sort_keys=True
        ),
        # Nobody reads it: it makes Snakemake read a run again whose log was replaced by one with an older date.
        state=lambda wildcards: PLAN.import_state(wildcards.run_id),
    shell:
        "python -m analysis.imports {params.spec:q} --out {output.steps:q} --cache .wandb-cache 2> >(tee {log:q} >&2)"
