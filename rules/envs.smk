BUILD = (
    'python -P "$ROLLOUTBENCH_MODULE" workflow.stacks build {wildcards.stack:q} --expect {wildcards.lock_id:q} --stacks-dir .stacks'
    " --backend {resources.backend:q} 2> >(tee {log:q} >&2)"
)


# Builds one environment per stack and lock. The lock's id is in the path, so a new lock gets a new environment, and an
# unchanged lock is never rebuilt, whatever its file's date.
rule stack:
    output:
        ".stacks/{stack}/{lock_id}/verify.json",
    log:
        ".stacks/logs/{stack}-{lock_id}.log",
    # Before any training, so that no arm starts earlier because its stack is ready first.
    priority: 1000000
    conda:
        "../envs/controller/environment.yml"
    # Resources, not params: another experiment's backend must not trigger a rebuild. Each stack declares the resources
    # of its build; set-resources: stack: in a profile replaces them.
    resources:
        backend=PLAN.config.envs.backend,
        cpus_per_task=lambda wildcards: load_stack(wildcards.stack).build_job[
            "cpus_per_task"
        ],
        mem_mb=lambda wildcards: load_stack(wildcards.stack).build_job["mem_mb"],
        runtime=lambda wildcards: load_stack(wildcards.stack).build_job["runtime"],
    shell:
        BUILD


# Verifies an environment again whose checks or run-time settings have changed: their id is in the path. Right after a
# build the file is there.
rule stack_checks:
    input:
        # ancient: verifying a stack again does not change it, and running jobs read this file.
        ancient(".stacks/{stack}/{lock_id}/verify.json"),
    output:
        ".stacks/{stack}/{lock_id}/verify-{verify_id}.json",
    log:
        ".stacks/logs/{stack}-{lock_id}-{verify_id}.log",
    priority: 1000000
    conda:
        "../envs/controller/environment.yml"
    resources:
        backend="auto",
        cpus_per_task=4,
        mem_mb=16000,
        runtime=120,
    shell:
        BUILD
