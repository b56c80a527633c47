"""Runs SGLang for a trainer: starts its HTTP server as a child process, generates, and updates its weights."""

from __future__ import annotations

import base64
import json
import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from http.client import OK, HTTPConnection, HTTPException
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

from common.errors import UserError
from common.files import ROOT, tail
from common.redaction import without_secrets
from engines.sglang.settings import final_settings
from node.exit_codes import STOP_SIGNALS, USER_ERROR, one_line
from node.hardware import free_port
from node.ranks import describe_exit

CPU_SETTINGS = {
    "device": "cpu",
    "attention_backend": "torch_native",
    "sampling_backend": "pytorch",
    "grammar_backend": "none",
    # Otherwise its scheduler polls without a pause and occupies a core between two batches.
    "sleep_on_idle": True,
}
"""SGLang's settings for a CPU: no compiled kernels, and no polling."""
_CPU_VARIABLES = {
    "SGLANG_USE_CPU_ENGINE": "1",
    # All requests of a batch reach the scheduler together, so that its first iterations are reproducible.
    "SGLANG_ENABLE_COLOCATED_BATCH_GEN": "1",
}
_HOST = "127.0.0.1"
_BUCKET_BYTES = 512 * 2**20
"""Maximum bytes of weights that are in memory twice during an update."""
_LAST_LINES = 3


class EngineEnded(RuntimeError):
    """SGLang's server ended unexpectedly."""


class Generated:
    """SGLang's answer to a batch of prompts: token ids are there at once, log-probabilities when they are asked for."""

    def __init__(self, results: Sequence[Mapping[str, Any]]) -> None:
        self.token_ids: list[list[int]] = [result["output_ids"] for result in results]
        self._results = results

    def shortened(self, most: int) -> int:
        """How many responses end before an end token and before `most` tokens.

        SGLang allows a request as many tokens as its whole cache has room for, without a word (managers/scheduler.py,
        init_req_max_new_tokens); vLLM refuses such a cache when it starts.
        """
        ends = (result["meta_info"]["finish_reason"]["type"] for result in self._results)
        return sum(end != "stop" and len(ids) < most for end, ids in zip(ends, self.token_ids, strict=True))

    def log_probs(self) -> list[list[float]]:
        """The log-probability of each token."""
        rows = (result["meta_info"]["output_token_logprobs"] for result in self._results)
        return [[token[0] for token in row] for row in rows]


class Sglang:
    """SGLang's server on this machine's GPUs or CPU, which writes to the file `log`.

    `settings` are SGLang's `ServerArgs`; they replace the defaults here. With `enable_memory_saver` it sleeps on
    a GPU; after waking all weights must be loaded again. `UserError` for settings that SGLang rejects.
    """

    def __init__(self, model: Path, dtype: str, seed: int, settings: Mapping[str, Any], log: Path) -> None:
        import torch

        self._on_gpu = torch.cuda.is_available()
        self.sleeps = self._on_gpu and bool(settings.get("enable_memory_saver"))
        self._log, self._port = log, free_port()
        # Of this process, since the server also receives tensors with it.
        self._secret = bytes(multiprocessing.current_process().authkey).hex()
        # Prompts and completions are token ids.
        given = {"model_path": str(model.absolute()), "dtype": dtype, "random_seed": seed, "skip_tokenizer_init": True}
        # 0.4.6 chooses one of 901 ports and binds it after loading the model, so engines of a node can collide.
        given |= {"dist_init_addr": f"{_HOST}:{free_port()}", "log_level": "error"}
        given |= {} if self._on_gpu else CPU_SETTINGS
        self._process = self._started({**given, **settings, "host": _HOST, "port": self._port})
        assert self._process.stdout
        self._answer = json.loads(self._process.stdout.readline() or "null")
        if self._answer is None:
            raise self._end()

    def _started(self, settings: Mapping[str, Any]) -> subprocess.Popen[bytes]:
        variables = {} if self._on_gpu else _CPU_VARIABLES
        # A server that a stop ends while it starts would look like a failure.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
        try:
            with self._log.open("wb") as log:
                process = subprocess.Popen(
                    # Many of its kernels warn "Only CUDA supports …".
                    [sys.executable, "-W", "ignore", "-m", "engines.sglang.server"],
                    cwd=ROOT,
                    # Its first request, to itself, would go to a site's proxy.
                    env={**os.environ, **variables, "NO_PROXY": _HOST, "no_proxy": _HOST},
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=log,
                )
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        assert process.stdin
        with suppress(BrokenPipeError), process.stdin as request:
            request.write(json.dumps({"parent": os.getpid(), "secret": self._secret, "settings": settings}).encode())
        return process

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        sampling: Mapping[str, Any] | Sequence[Mapping[str, Any]],
        log_probs: bool = True,
    ) -> Generated:
        """One completion for each prompt, and with `log_probs` those of its tokens.

        `sampling` are the parameters of all prompts, or of each.
        """
        return Generated(self._ask("generate", input_ids=prompts, sampling_params=sampling, return_logprob=log_probs))

    def update_weights(self, named: Iterable[tuple[str, Any]]) -> None:
        """Load new weights into the engine, and flush its cache."""
        sessions = self._answer["update_sessions"]
        if sessions:
            self._ask("begin_weight_update")
        for bucket in buckets(named):
            # Each of the engine's processes opens the tensors in shared memory, on a GPU by CUDA IPC. They are sent as
            # CUDA's numbers, as its processes see the same GPUs: 0.4.6 does not support the UUIDs of SGLang's own
            # patch. On a CPU they are copied, because sending moves tensors into shared memory.
            sent = [
                (name, each.detach().to("cuda") if self._on_gpu else each.detach().clone()) for name, each in bucket
            ]
            parts = [ForkingPickler.dumps(sent) for _ in range(self._answer["shards"])]
            texts = [base64.b64encode(part).decode() for part in parts]
            self._ask("update_weights_from_tensor", serialized_named_tensors=texts, flush_cache=False)
        if sessions:
            self._ask("end_weight_update")
        self._ask("flush_cache")

    def sleep(self) -> None:
        """Free the memory, including the weights."""
        self._ask("release_memory_occupation")

    def wake(self) -> None:
        """Allocate the memory again; all weights must be loaded again."""
        self._ask("resume_memory_occupation")

    def settings(self) -> dict[str, Any]:
        """The engine's final settings, for done.json."""
        try:
            info = self._ask("server_info")
        except RuntimeError:
            info = self._ask("get_server_info")  # its name in releases such as 0.4.6
        final = final_settings(info)
        if self._on_gpu:
            return {"name": "sglang", "device": "cuda", **final, "tensor_parallel_size": final["tp_size"]}
        final.pop("mem_fraction_static", None)
        return {"name": "sglang", "device": "cpu", **final, "stand_ins": self._answer["stand_ins"]}

    def close(self) -> None:
        """End the server; its processes end with it."""
        self._process.kill()
        self._process.wait()

    def _ask(self, path: str, **body: Any) -> Any:
        """The server's answer to a request; `EngineEnded` if it ended, `RuntimeError` if it refuses the request."""
        connection = HTTPConnection(_HOST, self._port)
        headers = {"Authorization": f"Bearer {self._secret}", "Content-Type": "application/json"}
        method = "GET" if path.endswith("server_info") else "POST"
        try:
            connection.request(method, f"/{path}", json.dumps(body), headers)
            answer = connection.getresponse()
            status, text = answer.status, answer.read()
        except (OSError, HTTPException) as error:
            raise self._end() from error
        finally:
            connection.close()
        if status != OK:
            raise RuntimeError(f"SGLang refuses {path}: {status} {one_line(text.decode())}")
        return json.loads(text) if path == "generate" or method == "GET" else None

    def _end(self) -> Exception:
        """Why the server ended."""
        code = self._process.wait()
        lines = [without_secrets(line) for line in tail(self._log).splitlines() if line.strip()]
        if code == USER_ERROR:
            return UserError(lines[-1].removeprefix("error: "))
        last = f"{describe_exit(code)}; its last lines: {' | '.join(lines[-_LAST_LINES:])} (see {self._log})"
        if "SIGKILL" in last:
            last += (
                ". SIGKILL mostly means that the node ran out of memory (`dmesg`): give the job more, or lower "
                "workload.batch_size"
            )
        return EngineEnded(f"SGLang's server {last}")


def buckets(named: Iterable[tuple[str, Any]], most_bytes: int = _BUCKET_BYTES) -> Iterator[list[tuple[str, Any]]]:
    """The tensors in order, in groups of at most `most_bytes`; a larger tensor is its own group."""
    group: list[tuple[str, Any]] = []
    size = 0
    for name, tensor in named:
        tensor_bytes = tensor.numel() * tensor.element_size()
        if group and size + tensor_bytes > most_bytes:
            yield group
            group, size = [], 0
        group.append((name, tensor))
        size += tensor_bytes
    if group:
        yield group
