"""Where a script has a varied word, and what the copy has there: every form is run by a real bash."""

import re
import subprocess
from pathlib import Path

import pytest
import yaml

from common.errors import UserError
from workflow.launch_scripts.words import changes_of, script_facts

CASES = yaml.safe_load(Path(__file__).with_name("words.yaml").read_text(encoding="utf-8"))
HEAD = "#!/bin/bash\nset -e\nshow() { printf '<%s>' \"$@\"; }\n"
HEAD += "one() { echo one-$#; }\nE=vllm F=f A=/a ARR=(one two)\n"


def copy_of(text, words):
    """The copy's text, and what is said of its words."""
    changes = changes_of(text, words)
    source = text.encode()
    for start, end, new in sorted(changes.edits, reverse=True):
        source = source[:start] + new.encode() + source[end:]
    return source.decode(), changes


def printed(text, folder, **environ):
    """What a script prints; `show` prints its arguments in angle brackets."""
    (folder / "run.sh").write_text(text)
    command = ["bash", "run.sh", "first", "second"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, env=environ or None)
    return None if done.returncode or done.stderr else done.stdout


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case['words'][0]}: {case['script'].splitlines()[-1][:50]}")
def test_a_word_at_its_place(case, tmp_path):
    script, words = case["script"], case["words"]
    if "refused" in case:
        with pytest.raises(UserError, match=re.escape(case["refused"])):
            changes_of(script, words)
        return
    if "prints" in case:
        assert printed(copy_of(HEAD + script, words)[0], tmp_path).replace("<.>", "<>") == case["prints"]
    copy, changes = copy_of(script, words)
    assert [text for text in case.get("copy", ()) if text not in copy] == [], copy
    for key in case.keys() - {"script", "words", "prints", "copy"}:
        assert getattr(changes, key) == case[key]


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


def argv(text, folder):
    out = printed(text, folder)
    return None if out is None else re.findall("<([^<>]*)>", out)


@pytest.mark.parametrize("around", AROUND)
def test_a_flag_is_replaced_with_any_value_that_bash_reads_as_one_word(around, tmp_path):
    """Bash runs script and copy: the value differs, and no other argument. Inside a text some are refused."""
    replaced = 0
    for value in VALUES.replace("\n", "|").strip("|").split("|"):
        text = HEAD + AROUND[around].format(value)
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


@pytest.mark.parametrize("name", ["a.b.name", "--a"])
def test_a_value_that_may_be_several_words_is_doubted(name):
    assert changes_of(f"python3 train.py {name}=$V z=1\n", [f"{name}=p"]).doubts, "V is of the environment"
    assert "$(echo x y) is taken" in changes_of(f"python3 train.py {name}=$(echo x y)\n", [f"{name}=p"]).doubts[0]
    assert not changes_of(f'V="x y"\npython3 train.py {name}="$V"\n', [f"{name}=p"]).doubts


def test_an_argument_of_the_script_selects_the_training():
    script = "case $1 in\nvllm) python train.py --a 1;;\n*) python other_train.py --b 1;;\nesac\n"
    changes = changes_of(script, ["1=vllm", "--c=2"], ["x", "y"])
    assert changes.arguments == ["vllm", "y"]
    assert "line 2" in changes.sentences[1]


SETS = """read V <<< x|read -r A V < f|printf -v V x|V[0]=x|V+=x|mapfile -t V < f|unset V|readarray V < f|getopts ab: V
while read -r V; do :; done < f|f() { read V; }; f|bash -c 'read V'|for V in x; do|select V in x y; do"""


@pytest.mark.parametrize("sets", SETS.replace("\n", "|").split("|"))
def test_a_variable_that_the_script_sets_itself_is_refused_not_set_around_it(sets):
    script = f"true\n{sets}\npython3 -m verl.trainer.main_ppo a.b.name=$V z=1\n" + "done\n" * sets.endswith("do")
    with pytest.raises(UserError, match=r"line 2 sets V, and a copy cannot have another value there"):
        changes_of(script, ["V=p"])
    assert changes_of(script, ["W=p"]).environment == {"W": "p"}
    doubts = changes_of(f"V=x\n{script}", ["V=p"]).doubts
    assert any("sets V again, below the place that is replaced" in one for one in doubts), doubts


def test_the_scripts_own_path_is_that_of_the_original(tmp_path):
    script = 'cd "$(dirname "$0")"; echo ${0##*/} "${BASH_SOURCE[0]}" $BASH_SOURCE; awk \'{print $0}\' <<< x\n'
    path = str(tmp_path / "original.sh")
    out = printed(copy_of(script, [])[0], tmp_path, ROLLOUTBENCH_SCRIPT=path, PATH="/usr/bin:/bin")
    assert out == f"original.sh {path} {path}\nx\n"


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
