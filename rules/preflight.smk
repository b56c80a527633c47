from workflow.preflight.cases import (
    settings_ids,
    settings_request,
    settings_requests,
)

# run_id -> settings_id, and settings_id -> a run with these settings; all seeds share them.
SETTINGS_IDS = settings_ids(PLAN)
SETTINGS = settings_requests(PLAN, SETTINGS_IDS)


# Resolves all settings of a trainer with the stack's libraries, so that settings that it rejects fail before the queue.
# The file's name has the request's hash, so that arms and seeds with equal requests share the result.
rule settings:
    input:
        # ancient: verifying a stack again does not change it.
        stack=ancient(
            lambda wildcards: PLAN.stack_file(SETTINGS[wildcards.settings_id].run_id)
        ),
    output:
        f"{RESULTS}/settings/{{settings_id}}.json",
    log:
        f"{RESULTS}/logs/settings-{{settings_id}}.log",
    # Before any training, like the stacks.
    priority: 1000000
    conda:
        "../envs/controller/environment.yml"
    params:
        request=lambda wildcards: json.dumps(
            settings_request(SETTINGS[wildcards.settings_id]), sort_keys=True
        ),
    shell:
        'python -P "$ROLLOUTBENCH_MODULE" workflow.cli resolve-settings {params.request:q} --stack {input.stack:q} --out {output:q}'
        " 2> >(tee {log:q} >&2)"


# What only logs show: the settings of imported runs, and of scripts once they have run. All seeds have the same
# settings, and some may never be trained.
LOGGED = [*PLAN.imports, *PLAN.first_own_runs]
# What is known before the training; the whole result if there are no logs.
CHECKED = f"{RESULTS}/checked.json" if LOGGED else f"{RESULTS}/preflight.json"
SETUP = site_of(workflow, TRAIN).setup


# Checks what is impossible, unequal or odd in the experiment, and writes the fairness ledger.
rule preflight:
    input:
        settings=expand(
            f"{RESULTS}/settings/{{settings_id}}.json", settings_id=SETTINGS
        ),
        # Its variables reach every training.
        setup=[str(SETUP)] if SETUP else [],
    output:
        CHECKED,
    log:
        f"{RESULTS}/logs/preflight.log",
    # Before any training, like the stacks.
    priority: 1000000
    localrule: True
    conda:
        "../envs/controller/environment.yml"
    params:
        # A function, because Snakemake does not expand braces in its value.
        config=lambda wildcards: json.dumps(config),
        # As in rule plan.
        fingerprint=PLAN.fingerprint,
    shell:
        'python -P "$ROLLOUTBENCH_MODULE" workflow.cli write-preflight {params.config:q} --settings {input.settings:q} --setup {input.setup:q}'
        " --out {output:q} --clear 2> >(tee {log:q} >&2)"


TO_TRAIN, VERIFIED = clearances(PLAN), checks_before(PLAN)


# What trainings need, of the runs that are still to be trained: no rule makes that of a finished run. Snakemake compares
# each output of a job with each: few at a time.
for first in range(0, len(TO_TRAIN), 30):

    rule:
        name:
            f"clear_{first}"
        input:
            CHECKED,
            VERIFIED,
        output:
            TO_TRAIN[first : first + 30],
        log:
            f"{RESULTS}/logs/clear-{first}.log",
        priority: 1000000
        localrule: True
        conda:
            "../envs/controller/environment.yml"
        shell:
            "touch {output:q} 2> {log:q}"


if LOGGED:

    # The same check with what the logs show: no training waits for an import.
    rule ledger:
        input:
            settings=expand(
                f"{RESULTS}/settings/{{settings_id}}.json", settings_id=SETTINGS
            ),
            setup=[str(SETUP)] if SETUP else [],
            # Its findings are not printed again.
            before=[CHECKED] if PLAN.runs else [],
            imported=expand(f"{RESULTS}/runs/{{run_id}}/imported.json", run_id=LOGGED),
        output:
            f"{RESULTS}/preflight.json",
        log:
            f"{RESULTS}/logs/ledger.log",
        localrule: True
        conda:
            "../envs/controller/environment.yml"
        params:
            config=lambda wildcards: json.dumps(config),
            # As in rule plan.
            fingerprint=PLAN.fingerprint,
        shell:
            'python -P "$ROLLOUTBENCH_MODULE" workflow.cli write-preflight {params.config:q} --settings {input.settings:q} --setup {input.setup:q}'
            " --imported {input.imported:q} --before {input.before:q} --out {output:q} 2> >(tee {log:q} >&2)"
