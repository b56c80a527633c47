"""A misspelt option of an engine is refused where the stack composes; both engines are stand-ins with some options."""

import json
import textwrap

import pytest

from .environments import VERSIONS

# The names of an engine's options, as its release has them; both packages need a GPU's libraries to be imported whole.
ENGINES = {
    "sglang/srt/server_args.py": """
        import dataclasses
        @dataclasses.dataclass
        class ServerArgs:
            model_path: str = ""
            chunked_prefill_size: int = 0
            attention_backend: str = ""
        """,
    "vllm/engine/arg_utils.py": """
        import dataclasses
        @dataclasses.dataclass
        class EngineArgs:
            max_num_seqs: int = 0
            attention_backend: str = ""
        """,
    "vllm/utils/argparse_utils.py": "from argparse import ArgumentParser as FlexibleArgumentParser",
    "vllm/entrypoints/openai/cli_args.py": """
        def make_arg_parser(parser):
            parser.add_argument("--max-log-len")
            return parser
        """,
}
CHECKS = """
import json, sys
folder, version, cases = json.load(sys.stdin)
sys.path.insert(0, folder)
from common.errors import UserError
from trainers.verl.driver.composed import check_engine_options
said = []
for engine, options in cases:
    try:
        said.append(check_engine_options(version, {"name": engine, "engine_kwargs": {engine: options}}) or "")
    except UserError as error:
        said.append(str(error))
print("\\n" + json.dumps(said))
"""


@pytest.mark.full("both releases of verl")
@pytest.mark.parametrize("version", VERSIONS)
def test_a_misspelt_option_of_the_engine_is_refused_when_the_stack_composes(version, warm_verl, tmp_path):
    for name, text in ENGINES.items():
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        for folder in file.relative_to(tmp_path).parents[:-1]:
            (tmp_path / folder / "__init__.py").touch()
        file.write_text(textwrap.dedent(text))
    cases = [
        ("vllm", {"max_num_seqs": 4, "attention_backend": None, "swap_space": None}),
        ("vllm", {"max_num_sequences": 4}),
        ("vllm", {"max_log_len": 8}),
        ("sglang", {"chunked_prefill_size": 512}),
        ("sglang", {"chunked_prefil_size": 512}),
        ("trtllm", {"anything": 1}),
    ]
    done = warm_verl(version).run("-c", CHECKS, given=json.dumps([str(tmp_path), version, cases]))
    assert done.returncode == 0, done.stderr
    good, wrong, served, fine, other, unknown = json.loads(done.stdout.splitlines()[-1])
    assert (good, fine, unknown) == ("", "", "")
    assert "engine_kwargs.vllm.max_num_sequences is no option of vLLM" in wrong and "max_num_seqs?" in wrong
    # 0.4.1 builds vLLM's LLM, 0.9.1 its server; 0.4.1 passes SGLang none (finding engine-kwargs-ignored).
    assert ("max_log_len is no option of vLLM" in served) is (version == "0.4.1")
    assert ("chunked_prefil_size is no option of SGLang" in other) is (version == "0.9.1")
