from workflow.preflight.cases import (
    settings_ids,
    settings_request,
    settings_requests,
)

# run_id -> settings_id, and settings_id -> a run that has these settings; seeds share them.
SETTINGS_IDS = settings_ids(PLAN)
SETTINGS = settings_requests(PLAN, SETTINGS_IDS)


# A trainer's settings, all of them, resolved by the stack's own libraries: what it would refuse is told here, before
# anything waits for a GPU. What a request says is in the file's name, so that no further seed or arm asks again.
rule settings:
    input:
        # ancient: a stack that is verified again is the same stack.
        stack=ancient(
            lambda wildcards: PLAN.stack_file(SETTINGS[wildcards.settings_id].run_id)
        ),
    output:
        f"{RESULTS}/settings/{{settings_id}}.json",
    log:
        f"{RESULTS}/logs/settings-{{settings_id}}.log",
    # Before any training, as the stacks.
    priority: 1000000
    conda:
        "../envs/controller/environment.yml"
    params:
        request=lambda wildcards: json.dumps(
            settings_request(SETTINGS[wildcards.settings_id]), sort_keys=True
        ),
    shell:
        "python -m workflow.cli resolve-settings {params.request:q} --stack {input.stack:q} --out {output:q}"
        " 2> >(tee {log:q} >&2)"


# What of the experiment is impossible, unequal or odd, and the fairness ledger that the report shows.
rule preflight:
    input:
        settings=expand(
            f"{RESULTS}/settings/{{settings_id}}.json", settings_id=SETTINGS
        ),
        # What a source says of its run's own settings.
        imported=expand(f"{RESULTS}/runs/{{run_id}}/imported.json", run_id=PLAN.imports),
    output:
        f"{RESULTS}/preflight.json",
    log:
        f"{RESULTS}/logs/preflight.log",
    localrule: True
    conda:
        "../envs/controller/environment.yml"
    params:
        # A function's value is taken as it stands: a brace in a text is no wildcard.
        config=lambda wildcards: json.dumps(config),
    shell:
        "python -m workflow.cli write-preflight {params.config:q} --settings {input.settings:q} --imported {input.imported:q}"
        " --out {output:q}"
        " 2> >(tee {log:q} >&2)"
