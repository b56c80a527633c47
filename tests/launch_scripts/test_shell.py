"""The reader of bash scripts: commands in order, with the script's own values, and what it does not know."""

from pathlib import Path

import pytest
import yaml

from workflow.launch_scripts.shell import read_script

CASES = yaml.safe_load(Path(__file__).with_name("commands.yaml").read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", CASES)
def test_what_a_script_does(name):
    case = dict(CASES[name])
    script = read_script(case.pop("script"), case.pop("arguments", ()))
    found = {
        "commands": [[word.text for word in one.words] for one in script.commands],
        "unknown": [one for command in script.commands for word in command.words for one in word.unknown],
        "exports": {key: word.text for key, word in script.exports.items()},
        "notes": [[*note[1:3]] for note in script.notes],
        "files": script.files,
    }
    assert {key: found[key] for key in case} == case


def test_a_broken_script_is_read_as_far_as_it_goes():
    broken = read_script("python t.py a=1\nif then fi (\n", ())
    assert [word.text for word in broken.commands[0].words] == ["python", "t.py", "a=1"] and broken.notes


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
