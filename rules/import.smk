# Imports one run that was trained elsewhere from its logs: its steps and its facts.
rule import_run:
    input:
        START,
        # Snakemake treats a name with a brace as a pattern; `state` below also detects changes of such files.
        lambda wildcards: [
            file for file in PLAN.import_files(wildcards.run_id) if "{" not in file
        ],
    output:
        steps=f"{RESULTS}/runs/{{run_id}}/steps.parquet",
        imported=f"{RESULTS}/runs/{{run_id}}/imported.json",
    log:
        f"{RESULTS}/runs/{{run_id}}/import.log",
    wildcard_constraints:
        run_id=id_pattern(PLAN.imports),
    # Cluster nodes may not reach a service's API or a user's own folders.
    localrule: True
    conda:
        "../envs/controller/environment.yml"
    # Each import reads full logs into memory on this machine; a profile limits the number of parallel imports.
    resources:
        import_slots=1,
    params:
        spec=lambda wildcards: json.dumps(
            PLAN.imports[wildcards.run_id].spec, sort_keys=True
        ),
        # Unused by the command: it makes Snakemake import a run again if an older log replaced its log.
        state=lambda wildcards: PLAN.import_state(wildcards.run_id),
    shell:
        'python -P "$ROLLOUTBENCH_MODULE" analysis.imports {params.spec:q} --out {output.steps:q} --cache .wandb-cache 2> >(tee {log:q} >&2)'
