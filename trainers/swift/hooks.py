"""Lists the names inside ms-swift that our driver uses (read in ms-swift 4.6).

Its GRPO trainer inherits from TRL's: `training_step` and the passes for log-probabilities are hooked as there.
"""

from node.hooks import Hook

_TRAINER = "swift.rlhf_trainers.grpo_trainer"
_ROLLOUT = "swift.rlhf_trainers.rollout_mixin"
_UTILS = "swift.rlhf_trainers.utils"
_CLIENT = "swift.rlhf_trainers.vllm_client"
_SERVER = "swift.pipelines.infer.rollout"
_TEMPLATE = "swift.template.base"
_PIPELINE = "swift.pipelines.train.rlhf"
_VLLM = "swift.infer_engine.vllm_engine"
_TRANSFORMERS = "swift.infer_engine.transformers_engine"

# Arguments
ARGUMENTS = Hook("swift.arguments.rlhf_args", "RLHFArguments", "", "a dataclass that swift's parser fills")
CONNECT = Hook("swift.arguments.rlhf_args", "RLHFArguments._init_external_vllm", "(self)", "connects to the server")
SERVER_ARGUMENTS = Hook("swift.arguments.deploy_args", "RolloutArguments", "", "a server's arguments")
COUNT_DEVICES = Hook("swift.arguments.deploy_args", "RolloutArguments._check_device_count", "(self)", "refuses a CPU")
VLLM_ARGUMENTS = Hook("swift.rlhf_trainers.args_mixin", "VllmArguments", "", "fields that trainer and server share")
PARSE = Hook(
    "swift.utils.utils", "parse_args", "(class_type, argv)", "returns the arguments, and the words it does not know"
)
MODELS = Hook("swift.model.register", "MODEL_MAPPING", "", "model type -> loader, is_reward")
LOADER = Hook("swift.model.register", "ModelLoader", "", "the standard loader")
MODEL_TYPES = Hook(
    "swift.model.model_meta", "get_matched_model_types", "(architectures)", "the types with these architectures"
)
SCHEDULER = Hook("swift.rollout.multi_turn", "MultiTurnScheduler", "", "the base of a user's scheduler")
STEP = Hook(
    "swift.rollout.multi_turn",
    "MultiTurnScheduler.step",
    "(self, infer_request, response_choice, current_turn)",
    "what a user's scheduler defines",
)
SCHEDULERS = Hook("swift.rollout.multi_turn", "multi_turns", "", "name -> scheduler; a user's is added")

# Building the trainer
PIPELINE = Hook(_PIPELINE, "SwiftRLHF", "", "run() prepares all, then calls train(trainer)")
DATASET = Hook(_PIPELINE, "SwiftRLHF._get_dataset", "(self)", "overridden: returns our rows and None")
PREPARE_TEMPLATE = Hook(_PIPELINE, "SwiftRLHF._prepare_template", "(self)", "overridden: sets `template`")
TRAINER_ARGUMENTS = Hook(_PIPELINE, "SwiftRLHF._get_trainer_kwargs", "(self)", "overridden: `reward_funcs` is added")
ENCODE = Hook(
    _TEMPLATE, "Template._jinja_encode", "(self, inputs)", "renders a conversation into contexts and loss scales"
)
ADD_EOS = Hook(
    _TEMPLATE,
    "Template._add_dynamic_eos",
    "(input_ids, labels, loss_scale, suffix_tokens_id)",
    "a static method that learns an end token",
)
SEPARATOR = Hook(
    _TEMPLATE,
    "Template._remove_response_separator_overlap",
    "(self, response, extra_context_list)",
    "drops an end token that stands twice",
)

# Training
TRAINING_STEP = Hook(_TRAINER, "GRPOTrainer.training_step", "(self, model, inputs, num_items_in_batch)", "as in TRL")
LOG_PROB = Hook(
    _TRAINER,
    "GRPOTrainer._get_per_token_logps_and_entropies",
    "(self, model, model_inputs, grpo_batch, ...)",
    "as in TRL; grpo_batch has completion_mask, and rollout_per_token_logps if the engine gave them",
)
SCORE = Hook(_TRAINER, "GRPOTrainer._score_completions", "(self, samples)", "returns the samples that are learned from")
METRICS = Hook(_TRAINER, "GRPOTrainer._metrics", "", "mode -> name -> list of numbers; averaged by log()")
LOG = Hook(_TRAINER, "GRPOTrainer.log", "(self, logs, start_time)", "once per step")
PROFILING = Hook(_UTILS, "profiling_context", "(trainer, name)", "times a block under a name")
PROFILING_TRAINER = Hook(_TRAINER, "profiling_context", "", "the same, imported")
PROFILING_ROLLOUT = Hook(_ROLLOUT, "profiling_context", "", "the same, imported")
BATCH = Hook(_ROLLOUT, "RolloutTrainerMixin._generate_completions", "(self, samples)", "as TRL's _generate_single_turn")
SYNC_WEIGHTS = Hook(
    _ROLLOUT, "RolloutTrainerMixin._move_model_to_vllm", "(self, skip_async_check)", "sends all weights, or the adapter"
)
LOAD = Hook(
    _ROLLOUT, "RolloutTrainerMixin._load_state_dict_to_vllm", "(self, state_dict)", "loads a part of the weights"
)
FINISH_LOADING = Hook(_ROLLOUT, "finish_vllm_weight_reload", "", "packs the weights after the last part")
ADAPTER_REQUEST = Hook(_ROLLOUT, "TensorLoRARequest", "", "takes an adapter's tensors as lora_tensors")
REQUEST = Hook(
    _ROLLOUT, "RolloutTrainerMixin._get_request_config", "(self)", "a generation's sampling; may have a seed"
)
ROLLOUT = Hook(
    _ROLLOUT,
    "RolloutTrainerMixin._rollout",
    "(self, samples, request_config, is_global_inputs)",
    "all turns of a batch",
)
OUTPUTS = Hook(
    _ROLLOUT,
    "RolloutTrainerMixin._postprocess_rollout_outputs",
    "(self, samples, outputs)",
    "adds the response to its sample",
)
REQUESTS = Hook(_ROLLOUT, "RolloutTrainerMixin.samples2requests", "(self, samples)", "a request has uuid")
WITH_SERVER = Hook(
    _ROLLOUT,
    "RolloutTrainerMixin._server_rollout",
    "(self, samples, request_config, is_global_inputs)",
    "asks the server",
)
WAIT = Hook(_ROLLOUT, "RolloutTrainerMixin._wait_queue", "(self, ...)", "waits for an asynchronous generation")
OFFLOAD_MODEL = Hook(_ROLLOUT, "RolloutTrainerMixin.offload_model", "(self, model)", "to the CPU")
LOAD_MODEL = Hook(_ROLLOUT, "RolloutTrainerMixin.load_model", "(self, model)", "back to the GPU")
OFFLOAD_OPTIMIZER = Hook(_ROLLOUT, "RolloutTrainerMixin.offload_optimizer", "(self)", "to the CPU")
LOAD_OPTIMIZER = Hook(_ROLLOUT, "RolloutTrainerMixin.load_optimizer", "(self)", "back to the GPU")
ADAPTER_ONLY = Hook(_ROLLOUT, "RolloutTrainerMixin.rollout_enable_lora", "", "whether only the adapter is sent")
EXECUTOR = Hook(_ROLLOUT, "RolloutTrainerMixin.executor", "", "submit(task) runs a generation during training")

# Engines
PREPARE_ENGINE = Hook(
    _VLLM, "VllmEngine._prepare_engine_kwargs", "(self, max_model_len, engine_kwargs)", "sets engine_args"
)
ENGINE_ARGUMENTS = Hook(_VLLM, "VllmEngine.engine_args", "", "vLLM's own arguments")
VLLM_ENGINE = Hook(_VLLM, "VllmEngine.engine", "", "vLLM's LLMEngine")
GRPO_ENGINE = Hook("swift.infer_engine.grpo_vllm_engine", "GRPOVllmEngine", "", "the VllmEngine of GRPO")
INFER = Hook(
    _TRANSFORMERS,
    "TransformersEngine._infer",
    "(self, infer_requests, request_config, *, adapter_request, pre_infer_hook)",
    "wrapped in torch.inference_mode",
)
GENERATION = Hook(
    _TRANSFORMERS, "TransformersEngine._prepare_generation_config", "(self, request_config)", "transformers' settings"
)
INFER_FULL = Hook(
    _TRANSFORMERS,
    "TransformersEngine._infer_full",
    "(self, inputs, *, generation_config, adapter_request, request_config, template_inputs)",
    "returns a response for each row of inputs, whose choices have message, token_ids and finish_reason",
)
TEMPLATE = Hook(_TRANSFORMERS, "TransformersEngine.template", "", "of prompts and responses")
GENERATED_IDS = Hook(
    _TEMPLATE,
    "Template.get_generate_ids",
    "(self, generate_ids, num_prompt_tokens)",
    "called once in _infer_full; returns the generated rows without prompts, in the order of choices",
)
DECODE = Hook(_TEMPLATE, "Template.decode_generate_ids", "(self, generate_ids, ...)", "returns the text")
DEFAULTS = Hook(_TRANSFORMERS, "TransformersEngine.generation_config", "", "fills what a request lacks")

# The server, and sending weights to it
SERVE = Hook(_SERVER, "rollout_main", "(args)", "the server")
WORKER = Hook(
    _SERVER, "llm_worker", "(args, data_parallel_rank, master_port, connection)", "a worker process with vLLM's engine"
)
ASYNC_WORKER = Hook(
    _SERVER, "llm_worker_entry", "(*args, **kwargs)", "a worker process with vLLM's asynchronous engine"
)
ROUTES = Hook(_SERVER, "SwiftRolloutDeploy._register_rl_rollout_app", "(self)", "adds the routes to `app`")
APP = Hook(_SERVER, "SwiftRolloutDeploy.app", "", "a FastAPI")
SEED = Hook(_SERVER, "get_seed", "", "a worker's seed; swift's is random")
WORKER_ENGINE = Hook(
    _SERVER,
    "SwiftRolloutDeploy.get_infer_engine",
    "(args, template, **kwargs)",
    "a static method; `template` is a keyword",
)
LOGGER = Hook(_SERVER, "logger", "", "error() is all that a failed call does")
EXTENSION = Hook(_SERVER, "WeightSyncWorkerExtension", "", "our extension of vLLM's worker inherits from it")
RECEIVE = Hook(
    _SERVER, "WeightSyncWorkerExtension.update_flattened_params", "(self, metadatas)", "overridden: receives a bucket"
)
JOIN = Hook(
    _SERVER,
    "WeightSyncWorkerExtension.init_communicator",
    "(self, host, port, world_size)",
    "overridden: joins the trainer's group",
)
PACK = Hook(
    _SERVER, "WeightSyncWorkerExtension.process_weights_after_loading", "(self)", "overridden: after all buckets"
)
SERVER_GROUP = Hook(_SERVER, "StatelessProcessGroup", "", "vLLM's class; create(host, port, rank, world_size) joins")
SERVER_NCCL = Hook(_SERVER, "PyNcclCommunicator", "", "vLLM's class, built with a group")
SERVER_SYNCHRONIZE = Hook(_SERVER, "synchronize", "", "waits for a GPU")
CHECK_SERVER = Hook(
    _CLIENT,
    "VLLMInferClient.check_server",
    "(self, total_timeout, retry_interval)",
    "called when `sessions` are there, before their first request",
)
SESSIONS = Hook(_CLIENT, "VLLMInferClient.sessions", "", "a requests.Session per server, for all but GET /health")
CLIENT_GROUP = Hook(_CLIENT, "StatelessProcessGroup", "", "as SERVER_GROUP")
CLIENT_NCCL = Hook(_CLIENT, "PyNcclCommunicator", "", "vLLM's class, built with a group")
BROADCAST = Hook(
    _CLIENT, "_broadcast_tensors_for_vllm_weight_sync", "(communicator, tensors)", "sends tensors with a communicator"
)
