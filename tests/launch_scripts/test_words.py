"""Where a script has a varied word, and what the copy has there: every form is run by a real bash."""

import re
import subprocess

import pytest

from common.errors import UserError
from workflow.launch_scripts.words import changes_of, script_facts

HEAD = "#!/bin/bash\nset -eu\nshow() { printf '<%s>' \"$@\"; }\n"


def copy_of(text, words):
    """The copy's text, and the sentences on its words."""
    changes = changes_of(text, words)
    source = text.encode()
    for start, end, new in sorted(changes.edits, reverse=True):
        source = source[:start] + new.encode() + source[end:]
    return source.decode(), changes.sentences


def ran(text, words, tmp_path):
    """What a copy prints; `show` prints its arguments in angle brackets."""
    copy = tmp_path / "copy.sh"
    copy.write_text(copy_of(text, words)[0])
    return subprocess.run(["bash", str(copy)], capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize(
    ("script", "word", "prints"),
    [
        ("show python t a.name=vllm \\\n  b=1\n", "a.name=sglang", "<python><t><a.name=sglang><b=1>"),
        ("E=vllm\nshow t \"a.name=${E}\" b=1\n", "a.name=sglang", "<t><a.name=sglang><b=1>"),
        ("show t a.name='vllm' b=1\n", "a.name=two words", "<t><a.name=two words><b=1>"),
        ("show t ++a.name=vllm\n", "a.name=it's", "<t><++a.name=it's>"),
        ("ARGS=(a.name=vllm 'b=1')\nshow t \"${ARGS[@]}\"\n", "a.name=sglang", "<t><a.name=sglang><b=1>"),
        ("ARGS='b=1\n  a.name=vllm'\nshow t $ARGS\n", "a.name=sglang", "<t><b=1><a.name=sglang>"),
        ("show t --engine vllm -b 1\n", "--engine=sglang", "<t><--engine><sglang><-b><1>"),
        ("show t --roll-engine \\\n  vllm\n", "roll_engine=sglang", "<t><--roll-engine><sglang>"),
        ("show t --fast -b 1\n", "--fast=false", "<t><--fast><false><-b><1>"),
        ("ARGS=\"-b 1 --engine vllm\"\nshow t $ARGS\n", "--engine=sglang", "<t><-b><1><--engine><sglang>"),
        ("ENGINE=${1:-vllm}\nshow t a.name=$ENGINE\n", "ENGINE=sglang", "<t><a.name=sglang>"),
        ("ENGINE=vllm bash -c 'echo $ENGINE'\n", "ENGINE=sglang", "sglang\n"),
        ("bash -c 'echo train a.name=vllm b=1'\n", "a.name=sglang", "train a.name=sglang b=1\n"),
        ("bash <<EOF\necho train a.name=vllm b=1\nEOF\n", "a.name=sglang", "train a.name=sglang b=1\n"),
        ("run() { show t a.name=$1; }\nrun vllm\n", "a.name=sglang", "<t><a.name=sglang>"),
        ("N=${X:-0} M=${Y:=0}\nshow t a.name=vllm $N $M\n", "a.name=sglang", "<t><a.name=sglang><0><0>"),
        ("# a.name=v\nshow t aa.name=1 a.name=v x.a.name=2\n", "a.name=s", "<t><aa.name=1><a.name=s><x.a.name=2>"),
        ("if true; then\n show t a.name=vllm\nelse\n show t a.name=hf\nfi\n", "a.name=sglang", "<t><a.name=sglang>"),
        ("show t a.name=[1,2] 'a.x={b:1}'\n", "a.name=[3,4]", "<t><a.name=[3,4]><a.x={b:1}>"),
        ("show $(dirname ${BASH_SOURCE[0]:-x}) a.name=vllm\n", "a.name=$(rm -rf /)", "<><a.name=$(rm -rf /)>"),
    ],
)  # fmt: skip
def test_a_word_is_replaced_at_its_place(script, word, prints, tmp_path):
    assert ran(HEAD + script, [word], tmp_path).replace("<.>", "<>") == prints


SETS = HEAD.replace("-eu", "-e") + "one() { echo one-$#; }\nE=vllm F=f A=/a ARR=(one two)\n"
VALUES = r"""
x|$E|${E}|${E:-d}|"$E"|'two words'|"a $E b"|$(one)|$(one "a b")|`one`|$A/b-$E/d|${E}_x"y"'z'|$E$F|~/x|$((1+2))|-1|[1,2]
a=b=$E|"$(one "a b")"|${#E}|${E%m}|"${ARR[0]}"|${ARR[0]}|"$1"|$1|${Q:-$E}|${Q:-$(one)}|"${E:-a b}"|""|$E"$F"|"$*"|{x}
$'a b'|$"a b"|\$x\ y|'{"a": 1}'|/x/$E-$(one a b)/y
"""
AROUND = {
    "a command": "show t --e {} -b 1\n",
    "its end": "show -b 1 --e \\\n   {} 2>&1 | cat\n",
    "equals": "show t -b 1 --e={} -c; true\n",
    "an array": 'X=(-c\n --e {}\n -d 1\n)\nshow "${{X[@]}}"\n',
    "a function": "run() {{ show t --e {}; }}\nrun first second\n",
    "a substitution": 'Y=$(show t --e {}); echo "$Y"\n',
    "a text": 'X="-c --e {} -d"\nshow $X\n',
    "an evaluated text": "X='-c --e {} -d'\neval show $X\n",
    "a here-document": "bash <<EOF\nprintf '<%s>' t --e {} -d\nEOF\n",
}


def argv(text, tmp_path):
    (tmp_path / "run.sh").write_text(text)
    command = ["bash", "run.sh", "first", "second"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    return None if done.returncode or done.stderr else re.findall("<([^<>]*)>", done.stdout)


@pytest.mark.parametrize("around", AROUND)
def test_a_flag_is_replaced_with_any_value_that_bash_reads_as_one_word(around, tmp_path):
    """Bash runs script and copy: the value differs, and no other argument. Inside a text some are refused."""
    replaced = 0
    for value in VALUES.replace("\n", "|").strip("|").split("|"):
        text = SETS + AROUND[around].format(value)
        before = argv(text, tmp_path)
        if before is None:
            continue
        try:
            copy, _ = copy_of(text, ["--e=NEW"])
        except UserError:
            assert "text" in around or "document" in around, value
            continue
        at = before.index("--e") + 1 if "--e" in before else None
        wanted = [one if number != at else "NEW" for number, one in enumerate(before)]
        wanted = [re.sub("^--e=.*", "--e=NEW", one, flags=re.DOTALL) for one in wanted]
        assert argv(copy, tmp_path) == wanted, value
        replaced += 1
    assert replaced > 15, replaced


@pytest.mark.parametrize(
    ("script", "line"),
    [
        ("E='--x 1'\npython train.py --e $E -b\n", "python train.py --e new $E -b"),
        ("E=\npython train.py --e $E -b\n", "python train.py --e new $E -b"),
        ('python train.py --e "$@"\n', 'python train.py --e new "$@"'),
        ('A=(--x 1)\npython train.py --e "${A[@]}"\n', 'python train.py --e new "${A[@]}"'),
        ('A=(1)\npython train.py --e "${A[@]}"\n', "python train.py --e new"),
        ("ARGS='--e -b 1'\npython train.py $ARGS\n", "ARGS='--e new -b 1'"),
        ('python train.py "a=two words" b --e 1\n', 'python train.py "a=two words" b --e new'),
    ],
)
def test_options_behind_a_flag_are_not_its_value(script, line):
    assert line in copy_of(script, ["--e=new"])[0].splitlines()


@pytest.mark.parametrize(
    "value", ["$E", '"${A[@]}"', "{a,b}", "$EMPTY c", '"${UNKNOWN[@]}"', "a\\\nb", '"$@" c', '"${A[@]:1}"']
)
def test_a_flag_with_several_values_or_none_is_refused(value):
    script = f"E='1 2'\nA=(1 2)\nEMPTY=\npython train.py --e {value}\n"
    with pytest.raises(UserError, match=r"^line 4: "):
        changes_of(script, ["--e=new"])


@pytest.mark.parametrize("name", ["a.b.name", "--a"])
def test_a_value_behind_an_equals_sign_that_is_several_words_is_refused(name):
    for script in (f"python3 train.py {name}=$V z=1\n", f"ARGS=({name}=$V z=1)\npython3 train.py ${{ARGS[@]}}\n"):
        with pytest.raises(UserError, match=rf"\$V behind {name} is 2 words"):
            changes_of(f'V="x +q=2"\n{script}', [f"{name}=p"])
        assert changes_of(script, [f"{name}=p"]).doubts, "V is of the environment"
        assert not changes_of(f"V=x\n{script}", [f"{name}=p"]).doubts
    assert "$(echo x y) is taken" in changes_of(f"python3 train.py {name}=$(echo x y)\n", [f"{name}=p"]).doubts[0]
    assert not changes_of(f'V="x y"\npython3 train.py {name}="$V"\n', [f"{name}=p"]).doubts


def test_a_value_that_is_not_known_is_replaced_with_a_doubt():
    for value in ("$UNKNOWN", "$(get)", "*.txt"):
        changes = changes_of(f"python train.py --e {value} -b\n", ["--e=new"])
        assert [edit.text for edit in changes.edits] == ["--e new"]
        assert changes.doubts == [f"line 1: {value} is taken for the value of --e, as one word; check it"]


@pytest.mark.parametrize(
    ("script", "word", "prints"),
    [
        ("E=x\nshow t out=/s/$E-$(one) b\n", "out={value}/new", "<t><out=/s/x-one-0/new><b>"),
        ("E=x\nshow t --out \"/s $E\" b\n", "out={value}/a b", "<t><--out></s x/a b><b>"),
        ('E=x\nenv printf "<%s>" t "out=/s $E" b\n', "out={value}/new", "<t><out=/s x/new><b>"),
        ("show t out=/s/$E b\n", "out={value}_new", "<t><out=/s/vllm_new><b>"),
        ('show t --out "$E" b\n', "out={value}_new", "<t><--out><vllm_new><b>"),
        ("OUT=/s/$(one)\nshow $OUT\n", "OUT={value}/new", "</s/one-0/new>"),
        ("ARGS='a=1 out=/s b=1'\nshow $ARGS\n", "out={value}/new", "<a=1><out=/s/new><b=1>"),
        ("E=x\nshow a=1\n", "a=$E/${E}/${e.f}", "<a=x/x/${e.f}>"),
        ('env printf "<%s>" train a=1 "$@"\n', 'b=$E `one` $(one) "$1"', '<train><a=1><b=vllm `one` $(one) "$1">'),
    ],
)  # fmt: skip
def test_a_value_keeps_what_it_means_in_the_script(script, word, prints, tmp_path):
    assert ran(SETS + script, [word], tmp_path) == prints


@pytest.mark.parametrize(
    ("script", "word", "told"),
    [
        ("python train.py\n", "a={value}/x", "a is not in the script"),
        ("python train.py a=1\n", "a=x/{value}", "stands at the beginning only"),
        ("A=(1 2)\npython train.py $A\n", "A={value}/x", "line 1: A has no single value there"),
        ("A='--a 1 --out $E'\npython train.py $A\n", "out={value}_x", "line 1: put braces around the variable"),
    ],
)
def test_the_scripts_own_value_needs_one(script, word, told):
    with pytest.raises(UserError, match=told):
        changes_of(script, [word])


def test_a_word_that_is_missing_is_appended_to_the_training_command():
    script = "pip install verl\npython3 -m verl.trainer.main_ppo a.b=1 2>&1 | tee log\npython plot.py\n"
    copy, (sentence,) = copy_of(script, ["a.name=two words"])
    assert "main_ppo a.b=1 'a.name=two words' 2>&1 | tee log" in copy
    assert sentence == (
        "a.name is not in the script: it is appended to the training command in line 2 "
        "(python3 -m verl.trainer.main_ppo a.b=1)"
    )
    assert "train.py --lr 1 --engine=sglang\n" in copy_of("python train.py --lr 1\n", ["engine=sglang"])[0]
    changes = changes_of('torchrun train.py --lr 1 "$@"\n', ["--engine=sglang"])
    assert (changes.arguments, changes.edits) == (["--engine=sglang"], [])
    # A first argument would be the engine.
    changes = changes_of('E=${1:-vllm}\npython train.py --e $E "$@"\n', ["--x=2"])
    assert changes.arguments == [] and [edit.text for edit in changes.edits] == [" --x=2"]
    assert changes_of("python train.py\n", ["VLLM_USE_V1=0"]).environment == {"VLLM_USE_V1": "0"}
    assert (
        "nohup accelerate launch train.py a=1 --x=2 &\n"
        in copy_of("nohup accelerate launch train.py a=1 &\n", ["--x=2"])[0]
    )


@pytest.mark.parametrize(
    ("script", "copy"),
    [
        ("srun -w n1 ray start --head &\n${BIN}python -m recipe.dapo.main_dapo a=1\n", "main_dapo a=1 --x=2\n"),
        ("trl vllm-serve --model m &\naccelerate launch grpo.py --config c.yaml\n", "c.yaml --x=2\n"),
        ("megatron rlhf --rlhf_type grpo\n", "grpo --x=2\n"),
        ("docker run image bash -c 'ray status; python train.py a=1'\n", "python train.py a=1 --x=2'\n"),
    ],
)
def test_a_server_or_a_cluster_is_not_the_training(script, copy):
    assert copy_of(script, ["--x=2"])[0].endswith(copy)


def test_a_word_that_occurs_twice_says_where():
    script = "python prepare.py --seed 1\nARGS=(--seed 2)\npython train.py --seed 3 --seed 4\n"
    copy, (sentence,) = copy_of(script, ["--seed=9"])
    assert copy.splitlines() == ["python prepare.py --seed 1", "ARGS=(--seed 9)", "python train.py --seed 9 --seed 9"]
    assert sentence == "--seed occurs 3 times: all are replaced in lines 2, 3; other commands keep theirs: line 1"
    _, (sentence,) = copy_of("if [ $1 ]; then A=1; else A=2; fi\npython train.py\n", ["A=3"])
    assert sentence == "A occurs 2 times: all are replaced in line 1"


def test_the_program_behind_a_launchers_flag_is_no_value_of_it():
    assert changes_of("torchrun --nproc 2 train.py --b 1\n", ["nproc=4"]).sentences == ["nproc is replaced in line 1"]


def test_an_argument_of_the_script_selects_the_training():
    script = "case $1 in\nvllm) python train.py --a 1;;\n*) python other_train.py --b 1;;\nesac\n"
    changes = changes_of(script, ["1=vllm", "--c=2"], ["x", "y"])
    assert changes.arguments == ["vllm", "y"]
    assert "line 2" in changes.sentences[1]


@pytest.mark.parametrize(
    ("script", "word", "told"),
    [
        ("echo nothing\n", "a.name=x", "no command in it looks like the training"),
        ('srun() { bash -c "$*"; }\nsrun python3 train.py z=1\n', "a.b=p", "cannot be added to the quoted command"),
        ('CMD="python3 train.py z=1"\nsrun bash -l -c $CMD\n', "a.b=p", "cannot be added to the quoted command"),
        ("ARGS='a.name=vllm b=1'\npython train.py $ARGS\n", "a.name=two words", "line 1: a.name is part of a longer"),
        ("ARGS='a.name=vllm'\npython train.py $ARGS\n", "a.name=two words", "cannot be quoted"),
    ],
)  # fmt: skip
def test_a_word_without_a_place_is_refused(script, word, told):
    with pytest.raises(UserError, match=told):
        changes_of(script, [word])


@pytest.mark.parametrize(
    "sets",
    [
        *("read V <<< x", "read -r A V < f", "printf -v V x", "V[0]=x", "V+=x", "mapfile -t V < f", "unset V"),
        *(
            "readarray V < f",
            "getopts ab: V",
            "while read -r V; do :; done < f",
            "f() { read V; }\nf",
            "bash -c 'read V'",
        ),
        *("for V in x; do", "select V in x y; do"),
    ],
)
def test_a_variable_that_the_script_sets_itself_is_refused_not_set_around_it(sets):
    script = f"true\n{sets}\npython3 -m verl.trainer.main_ppo a.b.name=$V z=1\n" + "done\n" * sets.endswith("do")
    with pytest.raises(UserError, match=r"line [23] sets V, and a copy cannot have another value there"):
        changes_of(script, ["V=p"])
    assert changes_of(script, ["W=p"]).environment == {"W": "p"}
    doubts = changes_of(f"V=x\n{script}", ["V=p"]).doubts
    assert any("sets V again, below the place that is replaced" in one for one in doubts), doubts


def test_the_scripts_own_path_is_that_of_the_original(tmp_path):
    script = 'cd "$(dirname "$0")"; echo ${0##*/} "${BASH_SOURCE[0]}" $BASH_SOURCE; awk \'{print $0}\' <<< x\n'
    (tmp_path / "copy").mkdir()
    copy = tmp_path / "copy" / "run.sh"
    copy.write_text(copy_of(script, [])[0])
    env = {"ROLLOUTBENCH_SCRIPT": str(tmp_path / "original.sh"), "PATH": "/usr/bin:/bin"}
    done = subprocess.run(["bash", str(copy)], capture_output=True, text=True, env=env, check=True)
    path = env["ROLLOUTBENCH_SCRIPT"]
    assert done.stdout == f"original.sh {path} {path}\nx\n"


@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        ("train.py", "import torch\n", r'python .*train.py "\$@"'),
        ("run", "#!/usr/bin/env python3\n", "is no bash script"),
        ("missing.sh", None, "No such file"),
    ],
)
def test_what_is_no_script_is_refused(name, text, told, tmp_path):
    if text is not None:
        (tmp_path / name).write_bytes(text.encode("latin-1"))
    with pytest.raises(UserError, match=told):
        script_facts({"words": [], "arguments": []}, tmp_path / name, {})


def test_braces_name_the_run(tmp_path):
    (tmp_path / "run.sh").write_text("python train.py --out a\n")
    settings = {"words": ["--out=ckpt/{run}", "--seed={seed}", "--x={other}"], "arguments": []}
    facts = script_facts(settings, tmp_path / "run.sh", {"run": "a-s1", "seed": "1"})
    assert facts["words"] == ["--out=ckpt/a-s1", "--seed=1", "--x={other}"]
    assert [edit[2] for edit in facts["edits"]] == ["--out ckpt/a-s1", " --seed=1 '--x={other}'"]
