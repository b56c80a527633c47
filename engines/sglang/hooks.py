"""Lists the names inside SGLang that our code uses (read in SGLang 0.4.6 to 0.5.23).

All that a trainer asks of our server are requests to SGLang's HTTP server; verl's own `Engine` describes itself.
"""

from node.hooks import Hook

_ENGINE = "sglang.srt.entrypoints.engine"
_SERVER = "sglang.srt.entrypoints.http_server"

ARGUMENTS = Hook("sglang.srt.server_args", "ServerArgs", "", "a dataclass with an HTTP server's settings")
LAUNCH = Hook(
    _SERVER,
    "launch_server",
    "(server_args, ..., launch_callback)",
    "serves; calls launch_callback after its first request",
)
APP = Hook(_SERVER, "app", "", "a FastAPI, which launch_server serves")
DETOKENIZER = Hook(
    _ENGINE,
    "Engine._launch_detokenizer_subprocesses",
    "(cls, server_args, port_args, run_detokenizer_process_func)",
    "a class method; returns processes and their names; not needed, as completions are token ids",
    since="0.5.12",
)
UPDATE_SESSION = Hook(
    _ENGINE,
    "Engine.begin_weight_update",
    "(self, selector)",
    "an update of the weights has a begin and an end",
    since="0.5.21",
)
INFO = Hook(_ENGINE, "Engine.get_server_info", "(self)", "a dictionary, as the server answers GET /server_info")
