# One environment per stack and lock. The lock's id is in the path: a new lock is a new environment beside the old
# one, and an unchanged lock is never built again, whatever its file's date says.
rule stack:
    output:
        ".stacks/{stack}/{lock_id}/verify.json",
    log:
        ".stacks/logs/{stack}-{lock_id}.log",
    # Before any training, so that no arm's runs go ahead of the others' because its stack was ready first.
    priority: 1000000
    conda:
        "../envs/controller/environment.yml"
    # Resources and no parameters: another experiment's backend is no reason to build again what is built and verified.
    # How much a build asks of a scheduler is its stack's matter; set-resources: stack: in a profile replaces it.
    resources:
        backend=PLAN.config.envs.backend,
        cpus_per_task=lambda wildcards: load_stack(wildcards.stack).build_job[
            "cpus_per_task"
        ],
        mem_mb=lambda wildcards: load_stack(wildcards.stack).build_job["mem_mb"],
        runtime=lambda wildcards: load_stack(wildcards.stack).build_job["runtime"],
    shell:
        "python -m workflow.stacks build {wildcards.stack:q} --expect {wildcards.lock_id:q} --stacks-dir .stacks"
        " --backend {resources.backend:q} 2> >(tee {log:q} >&2)"
