"""The reader of bash scripts: commands in order, with the script's own values, and what it does not know."""

import textwrap

import pytest

from workflow.launch_scripts.shell import read_script


def script_of(text, *arguments):
    return read_script(textwrap.dedent(text), arguments)


def commands(text, *arguments):
    return [[word.text for word in one.words] for one in script_of(text, *arguments).commands]


CASES = {
    "continued lines and quotes": (
        """\
        python -m t a=1\\
         b="two words"\\
         c='$X' l=['x','y'] d=\\[1,2\\] 2>&1 | tee log
        """,
        [["python", "-m", "t", "a=1", "b=two words", "c=$X", "l=[x,y]", "d=[1,2]"], ["tee", "log"]],
    ),
    "variables, defaults and arithmetic": (
        """\
        len=$((1024 * 2)); both=$((len + 3))
        model=${1:-Qwen/Qwen3-8B}; name=${model##*/}
        python t.py n=$both m="$model" x=${name%-8B} y=${none:+-e $none}
        """,
        [["python", "t.py", "n=2051", "m=Qwen/Qwen3-8B", "x=Qwen3", "y="]],
    ),
    "arrays and split words": (
        """\
        ARGS=(a=1 "b=2 3"); ARGS+=(c=4); MORE="--x 1 --y"
        python t.py "${ARGS[@]}" $MORE
        """,
        [["python", "t.py", "a=1", "b=2 3", "c=4", "--x", "1", "--y"]],
    ),
    "what is not known stays one word": (
        """\
        at=$(date +%s); n=$((GPUS * 2)); m=${M:-$((2 * 3))}
        python t.py out=$at n=$n m=$m
        """,
        [["python", "t.py", "out=$(date +%s)", "n=$((GPUS * 2))", "m=6"]],
    ),
    "parts of arrays, and their number": (
        """\
        A=(x y z)
        python t.py "all ${A[*]}" ${A[1]} n=${#A[@]} ${NODES[0]}
        """,
        [["python", "t.py", "all x y z", "y", "n=3", "${NODES[0]}"]],
    ),
    "commands in a variable": (
        """\
        ARGS="q='v w' \\
          $@"
        CMD="ray status; python a.py ${ARGS}"
        srun bash -c "$CMD"
        eval $CMD
        """,
        [
            ["srun", "bash", "-c", "ray status; python a.py q='v w'   "],
            ["ray", "status"],
            ["python", "a.py", "q=v w"],
            ["eval", "ray", "status;", "python", "a.py", "q='v", "w'"],
            ["ray", "status"],
            ["python", "a.py", "q=v w"],
        ],
    ),
    "a script that the script writes": (
        "cat > node.sh <<'EOF'\npython b.py k=1\nEOF\n",
        [["python", "b.py", "k=1"], ["cat"]],
    ),
    "a function is read where it is called": (
        """\
        train() { python t.py engine=$1 "$@"; }
        train vllm x=1
        """,
        [["python", "t.py", "engine=vllm", "vllm", "x=1"]],
    ),
    "a loop over known values": (
        "for e in vllm sglang; do python t.py e=$e & done; wait\n",
        [["python", "t.py", "e=vllm"], ["python", "t.py", "e=sglang"], ["wait"]],
    ),
    "conditions that the script decides": (
        """\
        E=vllm
        if [[ $E == vllm ]]; then N=1; else N=2; fi
        case $E in sglang) M=1 ;; vl*) M=2 ;; esac
        [ -z "$HF" ] && HF=hub
        python t.py $N $M $HF
        """,
        [["python", "t.py", "1", "2", "hub"]],
    ),
    "conditions on numbers, and their other branches": (
        """\
        N=0; E=sglang; A=0
        if [ $N -eq 1 ]; then A=1; fi
        if (( N < 2 )) && [[ $E != vllm || $N -gt 5 ]]; then B=2; else B=3; fi
        if [ $E = vllm ]; then C=1; elif [ $E = sglang ]; then C=2; else C=3; fi
        if ! [ -z "$E" ]; then D=4; fi
        [ $N -gt 1 ] && F=5 || F=6
        [ -f x ] && G=7 || G=8
        H=${H:-$(python3 -c 'import torch_npu' 2>/dev/null && echo npu || echo gpu)}
        python t.py $A $B $C $D $F $G $H
        """,
        [["python", "t.py", "0", "2", "2", "4", "6", "7", "gpu"]],
    ),
    "what the grammar takes apart": (
        "Q=/h; D=x\npython t.py f=$Q/a-$D/b n=1 p=${P:-$(((1 + 2) * 3))}\n",
        [["python", "t.py", "f=/h/a-x/b", "n=1", "p=9"]],
    ),
    "scripts inside a script": (
        """\
        K=5
        srun bash -c "python a.py k=$K q=\\"v w\\""
        sbatch <<EOF
        #SBATCH -N 1
        python b.py k=$K
        EOF
        """,
        [
            ["srun", "bash", "-c", 'python a.py k=5 q="v w"'],
            ["python", "a.py", "k=5", "q=v w"],
            ["sbatch"],
            ["python", "b.py", "k=5"],
        ],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_script_becomes_its_commands(name):
    text, expected = CASES[name]
    assert commands(text) == expected


def test_arguments_of_the_script_are_its_words():
    text = 'python t.py --engine ${1:-vllm} "${@:2}" "$@"\n'
    assert commands(text, "sglang", "a b") == [["python", "t.py", "--engine", "sglang", "a b", "sglang", "a b"]]
    assert script_of(text).commands[0].passes_arguments


def test_what_is_not_known_stays_as_written_and_is_listed():
    found = script_of('python t.py run=$SLURM_JOB_ID at="$(date)" x=1\n').commands[0].words
    assert [(word.text, word.unknown) for word in found[2:]] == [
        ("run=$SLURM_JOB_ID", ("$SLURM_JOB_ID",)),
        ("at=$(date)", ("$(date)",)),
        ("x=1", ()),
    ]
    broken = script_of("python t.py a=1\nif then fi (\n")
    assert [word.text for word in broken.commands[0].words] == ["python", "t.py", "a=1"]
    assert broken.notes


def test_a_words_place_is_its_bytes_in_the_script():
    text = "# 学習\nENGINE=vllm\npython t.py name=$ENGINE \\\n  b=2\nsrun bash -c 'python u.py c=3'\n"
    words = [word for one in read_script(text).commands for word in one.words]
    for word in words:
        assert text.encode()[word.start : word.end].decode() == word.raw
    assert {word.text: word.line for word in words if "=" in word.text and " " not in word.text} == {
        "name=vllm": 3,
        "b=2": 4,
        "c=3": 5,
    }


@pytest.mark.parametrize(
    ("text", "exports"),
    [
        ("export A=1 B='x y'\nC=3\nexport C\nexport A=2\n", {"A": "2", "B": "x y", "C": "3"}),
        ("declare -x D=4\nexport E=5\nunset E\nF=6\n", {"D": "4"}),
        ("if [ -d /data ]; then export G=1; else export G=2; fi\n", {"G": "2"}),
    ],
)
def test_exports(text, exports):
    script = read_script(text)
    assert {name: word.text for name, word in script.exports.items()} == exports
    assert [note[1:3] for note in script.notes] == [("[ -d /data ]", "cannot be decided here: G as if it held")] * (
        "if" in text
    )


def test_files_that_the_script_writes_are_known():
    text = "N=4\ncat > grpo.yaml <<EOF\nnum_generations: $N\nEOF\ncat <<'EOF' > raw.yaml\nx: $N\nEOF\n"
    assert read_script(text).files == {"grpo.yaml": "num_generations: 4\n", "raw.yaml": "x: $N\n"}
