"""Lists the names inside TRL that our driver uses (read in TRL 1.16)."""

from node.hooks import Hook

_TRAINER = "trl.trainer.grpo_trainer"
_PROFILING = "trl.extras.profiling"
_GENERATION = "trl.generation.vllm_generation"
_CLIENT = "trl.generation.vllm_client"

TRAINING_STEP = Hook(
    _TRAINER, "GRPOTrainer.training_step", "(self, model, inputs, num_items_in_batch)", "what TRL logs as step_time"
)
LOG_PROB = Hook(
    _TRAINER,
    "GRPOTrainer._get_per_token_logps_and_entropies",
    "(self, model, ...)",
    "every pass for log-probabilities",
)
LOSS = Hook(
    _TRAINER,
    "GRPOTrainer._compute_loss",
    "(self, model, inputs)",
    "the policy's pass; inputs have completion_mask, and sampling_per_token_logps if the engine gave them",
)
GENERATE = Hook(
    _TRAINER, "GRPOTrainer._generate", "(self, prompts)", "once per batch; returns prompt ids, completion ids, ..."
)
BATCH = Hook(
    _TRAINER,
    "GRPOTrainer._generate_single_turn",
    "(self, ...)",
    "a process's generation, without a gather after it",
)
CONTINUOUS = Hook(
    _TRAINER, "GRPOTrainer.continuous_batching_config", "", "transformers' own; None without continuous batching"
)
TOKENIZE = Hook(_TRAINER, "GRPOTrainer._tokenize_prompts", "(self, prompts)", "returns the prompts' ids first")
REF_MODEL = Hook(_TRAINER, "GRPOTrainer.ref_model", "", "the reference; None with an adapter or without KL")
VLLM_GENERATION = Hook(_TRAINER, "GRPOTrainer.vllm_generation", "", "only with use_vllm")

CONTEXT = Hook(_PROFILING, "profiling_context", "(trainer, name)", "times a block under a name, for our own engine")
ENTER = Hook(_PROFILING, "ProfilingContext.__enter__", "(self)", "opens every timer of TRL")
EXIT = Hook(
    _PROFILING, "ProfilingContext.__exit__", "(self, exc_type, exc_val, exc_tb)", "closes it, and logs to the tracker"
)
TIMER_NAME = Hook(_PROFILING, "ProfilingContext.name", "", "`GRPOTrainer.<timer>`")

LLM = Hook(_GENERATION, "LLM", "", "vLLM's class, called with seed and dtype as keywords")
SYNC_WEIGHTS = Hook(_GENERATION, "VLLMGeneration.sync_weights", "(self)", "called when the weights have changed")
GENERATE_WITH_VLLM = Hook(
    _GENERATION,
    "VLLMGeneration.generate",
    "(self, prompts, images, num_generations, profiler)",
    "`profiler` times the engine's call",
)
EXTRACT = Hook(
    _GENERATION, "extract_logprobs", "(all_outputs)", "log-probabilities of a colocated engine's answer, after it"
)
NAMED_PARAMETERS = Hook(_GENERATION, "VLLMGeneration._iter_named_params", "(self)", "all weights as vLLM names them")
MODE = Hook(_GENERATION, "VLLMGeneration.mode", "", "`colocate` or `server`")
COLOCATED = Hook(_GENERATION, "VLLMGeneration.llm", "", "vLLM's LLM, only colocated")
CLIENT = Hook(_GENERATION, "VLLMGeneration.vllm_client", "", "only on the main process, with a server")
ACCELERATOR = Hook(_GENERATION, "VLLMGeneration.accelerator", "", "the trainer's")

CONNECT = Hook(_CLIENT, "VLLMClient.init_communicator", "(self, device)", "joins the server's group; refuses a CPU")
UPDATE = Hook(
    _CLIENT,
    "VLLMClient.update_named_params",
    "(self, metadata, named_params)",
    "sends all weights: start, update, finish",
)
CHECK_SERVER = Hook(
    _CLIENT,
    "VLLMClient.check_server",
    "(self, total_timeout, retry_interval)",
    "called when `session` is there, before its first request",
)
SESSION = Hook(_CLIENT, "VLLMClient.session", "", "a requests.Session for all requests but GET /health")
POST = Hook(_CLIENT, "VLLMClient._post", "(self, url, **kwargs)", "a request with a JSON body; raises if it fails")
BASE_URL = Hook(_CLIENT, "VLLMClient.base_url", "", "the server's address")
SERVER_INFO = Hook(_CLIENT, "VLLMClient.get_server_info", "(self)", "vLLM's configuration as nested dictionaries")
