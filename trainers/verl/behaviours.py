"""Lists the confounders: the settings of which each release and engine makes something else.

One row per confounder. What a release makes of it, with the source, is in its own file (trainers/verl/releases/).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace

from trainers.cases import Case
from trainers.memory_estimate import MemoryEstimate, estimate_of
from trainers.rows import Behaviour
from trainers.verl.driver.overrides import ROLLOUT
from trainers.verl.engine_settings import PREFERRED, always
from trainers.verl.releases import releases

_VLLM, _SGLANG = f"{ROLLOUT}.engine_kwargs.vllm", f"{ROLLOUT}.engine_kwargs.sglang"


def _graphs_suffice(cases: Sequence[Case]) -> str:
    sizes = [int(case.behaviour("graph-sizes") or 0) for case in cases]
    at_once = [min(case.per_replica, _most_at_once(case)) for case in cases]
    if all(most <= size for most, size in zip(at_once, sizes, strict=True)):
        return f"a replica decodes at most {max(at_once)} sequences at once, which the graphs of every arm cover"
    return ""


def cache_never_full(cases: Sequence[Case]) -> str:
    """Whether no engine's cache can fill, so that its size cannot matter: the words for it, or nothing."""
    estimates = [estimate_of(case) for case in cases]
    if all(isinstance(one, MemoryEstimate) and one.kv_never_full for one in estimates):
        return (
            "by estimate all sequences that an engine decodes at once fit its cache at full length, with room to "
            "spare, in every arm: its size cannot change the speed"
        )
    return ""


def _few_sequences(cases: Sequence[Case]) -> str:
    most = max(case.per_replica for case in cases)
    if most <= min(_least_limit(case) for case in cases):
        return f"a replica gets {most} sequences in a step, no more than any limit"
    return ""


def _least_limit(case: Case) -> int:
    """The limit, or the least that it can be: of an engine that chooses by itself, the first number in its words."""
    found = re.search(r"\d+", case.behaviour("sequence-limit") or "")
    return int(found[0]) if found else 256


def _most_at_once(case: Case) -> int:
    """The limit, or the most that it can be."""
    told = case.behaviour("sequence-limit") or ""
    return int(told) if told.isdigit() else case.per_replica


def _short_prefill(cases: Sequence[Case]) -> str:
    """Prefill is a small part where responses are long: under a twentieth of the tokens, and in one or two passes."""
    case = cases[0]
    prompt, response = int(case.workload["max_prompt_length"]), int(case.workload["max_response_length"])
    tokens = max(one.per_replica for one in cases) * prompt
    limits = [int(text) for one in cases if (text := one.behaviour("prefill-limit")) and text.isdigit()]
    if prompt * 20 <= response and tokens <= 2 * min([*limits, 8192]):
        return f"a replica's prompts are at most {tokens:,} tokens in a step, read in a pass or two"
    return ""


def _one_gpu(cases: Sequence[Case]) -> str:
    return "" if any(case.tensor_parallel > 1 for case in cases) else "one GPU per engine: nothing is reduced"


def _one_completion(cases: Sequence[Case]) -> str:
    once = all(int(case.workload["num_generations"]) == 1 for case in cases)
    return "every prompt is completed once" if once else ""


def _drawn_again(cases: Sequence[Case]) -> str:
    fixed = all((case.behaviour("sampling-seed") or "").startswith("fixed") for case in cases)
    return "drawn from fixed seeds in all arms" if fixed else ""


_ROWS: tuple[Behaviour, ...] = (
    Behaviour(
        code="cuda-graphs",
        name="CUDA graphs while decoding",
        keys=(f"{ROLLOUT}.enforce_eager", f"{_VLLM}.enforce_eager", f"{_SGLANG}.disable_cuda_graph"),
        why=(
            "without graphs each of the hundreds of small kernels of a decoded token is launched by the CPU, and vLLM "
            "0.8.5 leaves out torch.compile as well (vllm/config.py:3884); decoding is most of a step. Seen in "
            "public, with a model of 0.5B on two A100s: 273 tokens/s of vLLM as configured, 504 tuned (verl issue 1133)"
        ),
    ),
    Behaviour(
        code="graph-sizes",
        name="the largest batch that graphs are captured for, where they are on",
        keys=(f"{ROLLOUT}.cudagraph_capture_sizes", f"{_SGLANG}.cuda_graph_max_bs"),
        why="an engine decodes larger batches than that without graphs, the other one still with them",
        no_effect=_graphs_suffice,
    ),
    Behaviour(
        code="attention-kernels",
        name="attention kernels",
        keys=(f"{_VLLM}.attention_backend", f"{_SGLANG}.attention_backend"),
        why=(
            "attention over long sequences is most of the work of a late decode step, and the two kernels differ in "
            "speed"
        ),
    ),
    Behaviour(
        code="custom-all-reduce",
        name="custom all-reduce between the engine's GPUs",
        keys=(f"{_VLLM}.disable_custom_all_reduce", f"{_SGLANG}.disable_custom_all_reduce"),
        why=(
            "two all-reduces per layer and token are small and bound by latency, where the engines' own kernel is "
            "faster than NCCL's"
        ),
        no_effect=_one_gpu,
    ),
    Behaviour(
        code="memory-share",
        name="memory for keys and values",
        keys=(
            f"{ROLLOUT}.gpu_memory_utilization",
            f"{_VLLM}.num_gpu_blocks_override",
            f"{_SGLANG}.max_total_tokens",
        ),
        why=(
            "the same number leaves the engines different room, and one whose cache is full makes sequences wait or "
            "computes them again"
        ),
        no_effect=cache_never_full,
        equal_without_effect=False,
    ),
    Behaviour(
        code="sequence-limit",
        name="sequences that one engine decodes at once",
        keys=(f"{ROLLOUT}.max_num_seqs", f"{_VLLM}.max_num_seqs", f"{_SGLANG}.max_running_requests"),
        why="an engine with the lower limit makes sequences wait, and its decode steps are smaller and more",
        no_effect=_few_sequences,
    ),
    Behaviour(
        code="prefill-limit",
        name="tokens that one prefill pass reads",
        keys=(
            f"{ROLLOUT}.max_num_batched_tokens",
            f"{ROLLOUT}.enable_chunked_prefill",
            f"{_VLLM}.max_num_batched_tokens",
            f"{_SGLANG}.chunked_prefill_size",
        ),
        why="with many or long prompts the passes differ in number and size, and decoding waits for them",
        no_effect=_short_prefill,
    ),
    Behaviour(
        code="prefix-cache",
        name="cache of common beginnings",
        keys=(
            f"{ROLLOUT}.enable_prefix_caching",
            f"{_VLLM}.enable_prefix_caching",
            f"{_SGLANG}.disable_radix_cache",
        ),
        why="with several completions per prompt only the engine with the cache reads each prompt once",
        change=always(
            f"{ROLLOUT}.enable_prefix_caching and, in the SGLang arms, +{_SGLANG}.disable_radix_cache: the opposite"
        ),
        no_effect=_one_completion,
    ),
    Behaviour(
        code="ignore-eos",
        name="the end token",
        keys=(f"{ROLLOUT}.ignore_eos", f"{_SGLANG}.preferred_sampling_params.ignore_eos"),
        why="one arm generates to the full length and the other does not: not the same work",
        change=always(
            f"{ROLLOUT}.ignore_eos: False in all arms, and compare at equal work; or, beside it, in the SGLang arms "
            f"{PREFERRED}"
        ),
    ),
    Behaviour(
        code="rollout-mode",
        name="synchronous or server rollout",
        keys=(f"{ROLLOUT}.mode",),
        why="a server takes requests one by one: other batches, other overheads, other timers",
        change=always(f"{ROLLOUT}.mode: the same in all arms"),
    ),
    Behaviour(
        code="sampling-seed",
        name="the engine's sampling seed",
        keys=(f"{ROLLOUT}.seed", f"{_VLLM}.seed", f"{_SGLANG}.random_seed"),
        why=(
            "a step waits for its longest response: responses that nobody can draw again differ in length from run to "
            "run, and so does the time"
        ),
        level="odd",
        no_effect=_drawn_again,
    ),
    Behaviour(
        code="sleep",
        name="weights and cache between rollouts",
        keys=(f"{ROLLOUT}.free_cache_engine",),
        why=(
            "copying the weights costs time in every step: to the CPU at the end of gen, back in reshard (0.4.1) or "
            "update_weights (0.9.1), which the report shows apart"
        ),
        level="odd",
    ),
    Behaviour(
        code="engine-environment",
        name="variables that the engine sets for the trainer's process, too",
        keys=(),
        why="the effect on training is not known; compare update_actor and old_log_prob, which no engine should change",
        change=always("nothing"),
        level=None,
        effect_known=False,
    ),
)


def behaviours() -> tuple[Behaviour, ...]:
    """The confounders, with what each release and engine does."""
    return tuple(
        replace(
            row,
            effects={
                f"verl {release.version} {engine}": effects[row.code]
                for release in releases()
                for engine, effects in release.effects.items()
                if row.code in effects
            },
            change=_change(row),
        )
        for row in _ROWS
    )


def _change(row: Behaviour) -> Callable[[Sequence[Case]], str]:
    """What to change, in the words of the earliest release among the cases: it allows the least."""

    def change(cases: Sequence[Case]) -> str:
        there = {case.version for case in cases}
        told = [one.changes[row.code] for one in releases() if one.version in there and row.code in one.changes]
        return (told[0] if told else row.change)(cases)

    return change
