# Compares the runs. It writes into a folder of its own: Snakemake removes a job's output before it starts, and a report
# that fails must leave the one before.
rule comparison:
    input:
        plan=f"{RESULTS}/plan.json",
        preflight=f"{RESULTS}/preflight.json",
        steps=lambda wildcards: expand(
            f"{RESULTS}/runs/{{run_id}}/steps.parquet",
            run_id=wanted_runs(PLAN, checkpoints, workflow.dryrun),
        ),
    output:
        temp(directory(f"{RESULTS}/.comparison")),
    log:
        f"{RESULTS}/logs/report.log",
    conda:
        "../envs/controller/environment.yml"
    params:
        folder=subpath(output[0], parent=True),
    shell:
        'python -P "$ROLLOUTBENCH_MODULE" analysis.report --plan {input.plan:q} --preflight {input.preflight:q} --results {params.folder:q} --out {output:q}'
        " --stacks .stacks --all-runs 2> >(tee {log:q} >&2)"


# The comparison in its place: one page, its tables and its figures as files; all are also in `snakemake --report`.
rule report:
    input:
        f"{RESULTS}/.comparison",
    output:
        html=report(
            f"{RESULTS}/report.html",
            caption="../workflow/report/comparison.rst",
            category="Comparison",
            labels={
                "experiment": PLAN.config.experiment,
                "what": "the whole comparison",
            },
        ),
        markdown=f"{RESULTS}/report.md",
        verdict=f"{RESULTS}/verdict.json",
        numbers=f"{RESULTS}/report.json",
        tables=report(
            directory(f"{RESULTS}/tables"),
            patterns=["{table}.csv"],
            caption="../workflow/report/tables.rst",
            category="Tables",
            labels={"experiment": PLAN.config.experiment, "table": "{table}"},
        ),
        figures=report(
            directory(f"{RESULTS}/figures"),
            patterns=["{figure}.svg"],
            caption="../workflow/report/figures.rst",
            category="Figures",
            labels={"experiment": PLAN.config.experiment, "figure": "{figure}"},
        ),
    log:
        f"{RESULTS}/logs/report-files.log",
    localrule: True
    conda:
        "../envs/controller/environment.yml"
    params:
        folder=subpath(output.html, parent=True),
    shell:
        "cp -r {input:q}/. {params.folder:q} 2> {log:q}"
