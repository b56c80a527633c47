"""Lists the names inside vLLM that our code uses (read in vLLM 0.31; `since` in the sources of 0.8 to 0.33)."""

from node.hooks import Hook

_ENGINE = "vllm.v1.engine.llm_engine"
_RUNNER = "vllm.v1.worker.gpu_model_runner"
_EMBEDDING = "vllm.model_executor.layers.vocab_parallel_embedding"
_RELOAD = "vllm.model_executor.model_loader.reload.layerwise"

PLATFORM = Hook("vllm.platforms", "current_platform", "", "has is_cpu()", since="0.6")

ARGUMENTS = Hook("vllm.engine.arg_utils", "EngineArgs", "", "a dataclass with the options of an engine", since="0.8")
CONFIG = Hook(_ENGINE, "LLMEngine.vllm_config", "", "sections with the final settings")
EXECUTOR = Hook(_ENGINE, "LLMEngine.model_executor", "", "only with the engine in this process")
CORE = Hook(_ENGINE, "LLMEngine.engine_core", "", "has shutdown()")
RESET_PREFIX_CACHE = Hook(
    _ENGINE,
    "LLMEngine.reset_prefix_cache",
    "(self, reset_running_requests, reset_connector)",
    "forgets keys and values of old weights",
)
DRIVER_WORKER = Hook(
    "vllm.v1.executor.uniproc_executor",
    "UniProcExecutor.driver_worker",
    "",
    "the worker, or a wrapper around it",
    since="0.12",
)
RUNNER = Hook("vllm.v1.worker.gpu_worker", "Worker.model_runner", "", "the wrapper passes it on")
RELOAD = Hook(
    _RUNNER,
    "GPUModelRunner.reload_weights",
    "(self, weights_iterator, weights_path, is_checkpoint_format)",
    "unpacks, loads and packs all weights",
    since="0.16",
)
MODEL_OF = Hook(_RUNNER, "GPUModelRunner.get_model", "(self)", "the model that has the weights")
MODEL = Hook(_RUNNER, "GPUModelRunner.model", "", "has load_weights()")
MODEL_CONFIG = Hook(_RUNNER, "GPUModelRunner.model_config", "", "what packing the layers needs")

OUTPUT_LAYER = Hook(_EMBEDDING, "ParallelLMHead", "", "has weight and quant_method; packed after loading")
EMBEDDING = Hook(_EMBEDDING, "VocabParallelEmbedding", "", "its weight may be the output layer's, too")
START_RELOAD = Hook(_RELOAD, "initialize_layerwise_reload", "(model)", "unpacks all layers", since="0.16")
FINISH_RELOAD = Hook(
    _RELOAD, "finalize_layerwise_reload", "(*args, **kwargs)", "packs them: model, model_config", since="0.16"
)

PIP_PACKAGES = Hook(
    "vllm.collect_env",
    "get_pip_packages",
    "(run_lambda, patterns)",
    "a pair of texts; calls pip, which a stack lacks",
    since="0.9",
)
SERVE = Hook("vllm.entrypoints.launchers.api_server.entry", "main", "()", "the server's command line", since="0.29")
SERVER_OPTIONS = Hook(
    "vllm.entrypoints.launchers.cli_args",
    "make_arg_parser",
    "(parser)",
    "adds all options of the server's command line to a parser, which it returns",
    since="0.29",
)
SERVER_OPTIONS_0_28 = Hook("vllm.entrypoints.openai.cli_args", "make_arg_parser", "(parser)", "the same", until="0.28")
PARSER = Hook("vllm.utils.argparse_utils", "FlexibleArgumentParser", "", "the class of that parser", since="0.11")
