"""Whatever a stranger's file holds, a command ends soon, in little memory, with its result or one refusal."""

import io
import json
import select
import struct
import subprocess
import sys
from itertools import islice, product
from pathlib import Path

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.compat.proto.tensor_pb2 import TensorProto
from tensorboard.compat.proto.tensor_shape_pb2 import TensorShapeProto
from tensorboard.summary.writer.record_writer import RecordWriter, masked_crc32c

from tests.analysis.sources.other_logs import nemo_block, openrlhf_line, slime_lines

ROOT = Path(__file__).resolve().parents[1]
FORMATS = ROOT / "tests" / "goldens" / "data" / "formats"
CPU_S = 5.0
"""All that these commands may take; the largest takes a second or two on an idle machine."""
MOST_LINES = 3
RUN = "python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo actor_rollout_ref.rollout.name=vllm $X\n"


class Commands:
    """A process with little memory that runs commands; it is started again when it had to be killed."""

    def __init__(self, folder):
        self.folder, self._process = folder, None
        (folder / "ok.jsonl").write_text(json_lines(rows(gen_s=5)))

    def run(self, *words):
        """The exit code and what was said; it fails where that is more or other than is promised."""
        if self._process is None:
            program = [sys.executable, "-P", str(Path(__file__).with_name("little_memory.py"))]
            self._process = subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._process.stdin.write(json.dumps({"cwd": str(self.folder), "words": words}) + "\n")
        self._process.stdin.flush()
        process = psutil.Process(self._process.pid)
        before = sum(process.cpu_times()[:2])
        while not select.select([self._process.stdout], [], [], 1.0)[0]:
            if sum(process.cpu_times()[:2]) > before + 4 * CPU_S:
                self.end()
                raise AssertionError(f"{words} took more than {4 * CPU_S} s of CPU time")
        line = self._process.stdout.readline()
        if not line:
            self.end()
            raise AssertionError(f"{words} ended its process")
        answer = json.loads(line)
        said = answer["said"]
        assert answer["code"] in (0, 1, 2) and "Traceback" not in said, said[-3000:]
        if answer["code"]:
            # The formats that can be read are listed below.
            own = [line for line in said.strip().splitlines() if not line.startswith("  ")]
            assert len(own) <= MOST_LINES and any(line.startswith("error: ") for line in own), said
        assert answer["cpu_s"] < CPU_S, (words, answer["cpu_s"])
        return answer["code"], said

    def compare(self, name, content):
        """Compare a file of this content with a right one."""
        file = self.folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content if isinstance(content, bytes) else content.encode("utf-8", "surrogatepass"))
        trainer = ["--trainer", "verl"] if name == "phases.csv" else []
        return self.run("compare", f"a={file}", "b=ok.jsonl", "--verdict-only", *trainer)

    def end(self):
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None


@pytest.fixture(scope="module")
def commands(tmp_path_factory):
    one = Commands(tmp_path_factory.mktemp("hostile"))
    yield one
    one.end()


def rows(steps=6, **more):
    return [{"step": s, "step_s": 10 + s / 10, "gen_s": 6, "train_s": 3, **more} for s in range(1, steps + 1)]


def json_lines(listed):
    return "".join(json.dumps(row) + "\n" for row in listed)


def csv(*cells, names="step,step_s,x"):
    return f"{names}\n" + "".join(f"{s},{10 + s / 10},{','.join(cells)}\n" for s in range(1, 7))


LARGE = "1" + "0" * 400
WORDS = ["".join(letters) for letters in islice(product("abcdefgh", repeat=4), 4_000)]
TABLES = {
    "seconds of 400 digits.jsonl": json_lines(rows()) + f'{{"step":7,"step_s":{LARGE}}}\n',
    "a step of 400 digits.jsonl": json_lines(rows()) + f'{{"step":{LARGE},"step_s":1}}\n',
    "a step of 10 to the 300.jsonl": json_lines(rows()) + '{"step":1e300,"step_s":1}\n',
    "columns of 400 digits.json": json.dumps({"step": [1, 2, 3], "step_s": [int(LARGE)] * 3}),
    "no finite number.jsonl": json_lines(rows()) + '{"step":7,"step_s":1e400}\n{"step":Infinity,"step_s":NaN}\n',
    "half a character.jsonl": json_lines(rows(**{"\ud800_s": 0.5, "note": "\ud800", "run": "\udfff"})),
    "90 brackets.jsonl": '{"a":' * 90 + "1" + "}" * 90 + "\n" + json_lines(rows()),
    "900 brackets.jsonl": '{"a":' * 900 + "1" + "}" * 900 + "\n" + json_lines(rows()),
    "900 lists.jsonl": json_lines(rows(x=1)).replace('"x": 1', '"x": ' + "[" * 900 + "]" * 900),
    "100,000 brackets.jsonl": '{"a":' * 100_000,
    "names that grow.jsonl": json.dumps({"k" * 100_000: {f"a{i}": 1 for i in range(20_000)}}),
    "commas.jsonl": json_lines(rows(step_time="1" + "," * 100_000 + "x")),
    "blanks.jsonl": json_lines(rows(step_time="1" + " " * 100_000 + "x", gen_time="1 000" * 20_000)),
    "blanks.tsv": csv('"1,5' + " " * 20_000 + 'x"').replace(",", "\t"),
    "digits.csv": csv("9" * 100_000),
    "a time of 50 digits.csv": csv("9" * 50 + ":00:00", names="step,step_s,gen_time"),
    "20,000 columns.csv": csv(*["1"] * 20_000, names="step,step_s," + ",".join(f"t{i}_s" for i in range(20_000))),
    "a name of 80,000 letters.csv": csv("1", names="step,step_s," + "it/s" * 20_000 + " _s"),
    "a cell of 200,000 letters.csv": csv("y" * 200_000),
    "an open quote.csv": 'step,step_s\n1,"' + "x\n" * 100_000,
    "2,000 phases in each other.csv": "step,phase,seconds,parent\n"
    + "".join(f"1,p{i},1,{f'p{i - 1}' if i else ''}\n" for i in range(2_000)),
    "seconds of 308 digits.jsonl": json_lines(rows(step_s=1e308)),
    "a few seconds of 308 digits.jsonl": json_lines(rows(60) + rows(2, step=61, step_s=1e308, gen_s=1e308)),
    "a column more in each row.jsonl": json_lines({"step": s, "step_s": 1, f"c{s}": 1} for s in range(15_000)),
    "4,000 times.csv": csv(*["1"] * 4_000, names="step,step_s," + ",".join(f"t{i}_s" for i in range(4_000))),
    "4,000 least times.csv": csv(*["1"] * 4_000, names="step,step_s," + ",".join(f"{w}_min" for w in WORDS)),
    "4,000 short times.csv": csv(*["1e-9"] * 4_000, names="step,step_s," + ",".join(f"{w}_time" for w in WORDS)),
    "the least seconds.jsonl": json_lines(rows(step_s=5e-324)),
    "zeros.jsonl": b"\0" * 1000,
    "nothing.csv": "",
}


SERVED = {"duration": 9.5, "completed": 8, "request_throughput": 0.84, "total_output_tokens": 99}
OF_REQUESTS = {"ttfts": [1, 2], "itls": [[1], [2]], "output_lens": [3, 4], "input_lens": [5, 6]}
BENCHMARKS = {
    "nothing answered": dict.fromkeys(SERVED, 0),
    "no time at all": SERVED | {"duration": 5e-324, "request_throughput": 0},
    "a duration of 400 digits": SERVED | {"duration": int(LARGE)},
    "latencies of 308 digits": SERVED | OF_REQUESTS | {"ttfts": [1e308, 1e308], "itls": [[1e308], [2]]},
    "latencies that are texts": SERVED | OF_REQUESTS | {"itls": [["x"], [[1]]]},
    "a number for a list": SERVED | OF_REQUESTS | {"output_lens": 3, "errors": 1},
}


def record(content):
    out = io.BytesIO()

    class Raw:
        write, flush, close = out.write, staticmethod(lambda: None), staticmethod(lambda: None)

    RecordWriter(Raw).write(content)
    return out.getvalue()


def events(value=None, **more):
    """An event file with this value in each step."""
    found = record(Event(wall_time=1.7e9, file_version="brain.Event:2").SerializeToString())
    for step in range(1, 7):
        values = [Summary.Value(tag="step_time", simple_value=10 + step / 10), *([value] if value else [])]
        given = {"wall_time": 1.7e9 + 10 * step, "step": step, **more}
        found += record(Event(**given, summary=Summary(value=values)).SerializeToString())
    return found


def tensor(*sizes, tag="x", **content):
    shape = TensorShapeProto(dim=[TensorShapeProto.Dim(size=size) for size in sizes])
    return Summary.Value(tag=tag, tensor=TensorProto(tensor_shape=shape, **content))


def arguments(text):
    return tensor(tag="args/text_summary", dtype=7, string_val=[text])


def longer(length):
    """The beginning of a record of this length, which the file does not have."""
    begins = struct.pack("<Q", length)
    return begins + struct.pack("<I", masked_crc32c(begins)) + b"x" * 100


EVENTS = {
    "4 billion numbers": events(tensor(4_000_000_000, dtype=1, float_val=[1.0])),
    "100 dimensions": events(tensor(*[1] * 100, dtype=1, float_val=[1.0])),
    "fewer than no numbers": events(tensor(-1, dtype=1, float_val=[1.0])),
    "no such type": events(tensor(dtype=99, float_val=[1.0])),
    "half a number": events(tensor(dtype=1, tensor_content=b"abc")),
    "a late step": events(step=2**62),
    "no time": events(wall_time=float("nan")),
    "the end of time": events(wall_time=float("inf")),
    "a long record": events() + longer(20 << 30),
    "the longest record": events() + longer(2**60),
    "a tag more in each record": b"".join(
        record(Event(step=s, wall_time=s, summary={"value": [{"tag": f"t{s}", "simple_value": 1}]}).SerializeToString())
        for s in range(1, 13_000)
    ),
    "deep arguments": events(arguments(b'{"a":' * 500 + b"1" + b"}" * 500)),
}


FILES = TABLES | {f"{name}.json": json.dumps(facts) for name, facts in BENCHMARKS.items()}
FILES |= {f"{name}/events.out.tfevents.1": content for name, content in EVENTS.items()}


@pytest.mark.parametrize("name", FILES)
def test_files(commands, name):
    commands.compare(name, FILES[name])


def parquet(table, times=1):
    out = io.BytesIO()
    with pq.ParquetWriter(out, table.schema, compression="zstd", use_dictionary=False) as writer:
        for _ in range(times):
            writer.write_table(table)
    return out.getvalue()


def steps_and(**columns):
    count = len(next(iter(columns.values())))
    return pa.table({"step": pa.array(range(1, count + 1)), "step_s": pa.array([1.0] * count), **columns})


PARQUET = {
    "50 million rows": lambda: parquet(pa.table({"step_s": np.zeros(5_000_000, dtype=np.int8)}), 10),
    "one row of 21 million numbers": lambda: parquet(
        steps_and(x=pa.ListArray.from_arrays([0, 21_000_000], pa.array(np.zeros(21_000_000, dtype=np.int8))))
    ),
    "6,000 columns": lambda: parquet(steps_and(**{f"c{i}_s": [1.0] for i in range(6_000)})),
    "a duration of ages": lambda: parquet(steps_and(gen_s=pa.array([2**62] * 6, pa.duration("s")))),
    "a date of ages": lambda: parquet(steps_and(time=pa.array([2**62 + i for i in range(6)], pa.timestamp("us")))),
    "damaged": lambda: parquet(steps_and(gen_s=[1.0] * 6)).replace(b"\x28\xb5\x2f\xfd", b"\xff" * 4),
}


@pytest.mark.parametrize("name", PARQUET)
def test_parquet(commands, name):
    code, _ = commands.compare(f"{name}.parquet", PARQUET[name]())
    # A column of ages beside the step's seconds is no reason to refuse them.
    assert code == ("ages" not in name)


SCRIPTS = {
    "a variable that doubles": "A=aaaaaaaaaa\n" + "A=$A$A\n" * 40,
    "a quoted one": "A=aaaaaaaaaa\n" + 'A="$A$A"\n' * 40,
    "an array that doubles": "A=(a b)\n" + 'A=("${A[@]}" "${A[@]}")\n' * 40,
    "a variable that is added to itself": "A=a\n" + "A+=$A\n" * 40,
    "brackets": "(" * 20_000 + "echo" + ")" * 20_000 + "\n",
    "open brackets": "(" * 20_000 + "\n",
    "commands in commands": "X=" + "$(" * 5_000 + "echo" + ")" * 5_000 + "\n",
    "defaults in defaults": "X=" + "${A:-" * 5_000 + "}" * 5_000 + "\n",
    "loops in loops": "".join(f"for i{k} in 1 2 3 4 5 6 7 8 9 10; do\n" for k in range(7)) + RUN + "done\n" * 7,
    "a function that calls itself": "f() { " + "f; " * 10 + "}\nf\n",
    "powers of powers": "A=$((((((2**64)**64)**64)**64)**64))\n",
    "a long sum": "A=$((" + "1+" * 20_000 + "1))\n",
    "what a long text begins with": "A=" + "a" * 50_000 + "\nB=${A%%b*}\n",
    "conditions in conditions": 'if [ "$Q" ]; then\n' * 2_000 + RUN + "fi\n" * 2_000,
    "a million lines": "# x\n" * 1_000_000,
    "a request of 5,000 digits": f"#SBATCH --nodes={'9' * 5_000} --mem={'9' * 400}G --time={'9' * 5_000}:00:00\n",
    "deep arguments": RUN.replace("$X", f"$X '+a={'{b:' * 3_000}1{'}' * 3_000}' '+c={'[' * 3_000}{']' * 3_000}'"),
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_launch_scripts(commands, name):
    file = commands.folder / f"{name}.sh"
    file.write_text(f"#!/bin/bash\n{SCRIPTS[name]}{RUN}")
    commands.run("new", "--from", str(file), str(file.with_suffix(".yaml")))
    commands.run("ab", str(file), "--vary", "X=1,2", "--save", str(file.with_suffix(".ab.yaml")))


VALID = {
    file.name: file.read_bytes() for file in FORMATS.iterdir() if file.suffix in (".log", ".jsonl", ".csv", ".json")
}
VALID |= {
    "nemo.log": "".join(map(nemo_block, range(1, 5))).encode(),
    "openrlhf.log": "".join(map(openrlhf_line, range(1, 5))).encode(),
    "slime.log": "".join(map(slime_lines, range(1, 5))).encode(),
    "rows.jsonl": json_lines(rows()).encode(),
    "rows.csv": csv("1").encode(),
    "rows.parquet": parquet(steps_and(gen_s=[1.0] * 6)),
    "x/events.out.tfevents.1": events(),
    "bench.json": json.dumps(SERVED).encode(),
}
PIECES = [b"9" * 400, b"1e400", b"NaN", b"-", b'"', b"{'", b"[[", b"\x1b[2J", b"\0", b"\xff\xfe", b"\\ud800"]
PIECES += [b",", b"\t", b"\r", b"\n", b" " * 3000, b"(" * 500]


@st.composite
def damaged(draw):
    """A right file of some format, in which some bytes are others, are gone, or come again."""
    name = draw(st.sampled_from(sorted(VALID)))
    content = VALID[name]
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, max(0, len(content) - 1)))
        end = min(len(content), start + draw(st.sampled_from([0, 1, 8, 100, 1000])))
        piece = draw(st.one_of(st.sampled_from(PIECES), st.binary(max_size=8), st.just(content[start:end] * 2)))
        content = content[:start] + piece + content[end:]
    return name, content


def check_damaged(commands, one):
    name, content = one
    commands.compare(name, content)


FEW = settings(max_examples=30, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))


@FEW
@given(one=damaged())
def test_damaged_files(commands, one):
    check_damaged(commands, one)


@pytest.mark.full("many damaged files")
@settings(FEW, max_examples=200)
@given(one=damaged())
def test_many_damaged_files(commands, one):
    check_damaged(commands, one)
