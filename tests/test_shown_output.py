"""What README and the tutorial show of a command is what it prints; line breaks and `…` aside."""

import re
import shlex
import shutil

import pytest

from workflow.cli import main

from .importing import ROOT

README, TUTORIAL = ROOT / "README.md", ROOT / "docs" / "tutorial.md"


def shown(page, command, folder):
    """The words of the first command of a page that begins like this, and the pieces that it shows; `folder`: where."""
    blocks = [
        re.sub(r"^    (\$ )?", "", block, flags=re.MULTILINE).strip()
        for block in re.findall(r"(?:^    .*\n)+", page.read_text(encoding="utf-8"), re.MULTILINE)
    ]
    begins = re.compile(rf"(?:cd (\S+)\n)?(?={re.escape(command)})")
    at, begin = next((n, found) for n, block in enumerate(blocks) if (found := begins.match(block)))
    assert begin[1] == folder, "the page says where its files are"
    words, _, output = re.sub(r"\\\n\s*", " ", blocks[at][begin.end() :]).partition("\n")
    return shlex.split(words)[1:], (output or blocks[at + 1]).split("…")


@pytest.mark.parametrize(
    ("page", "folder"),
    [(README, "tests/answers/faster_generation"), (TUTORIAL, None)],
    ids=["README", "tutorial"],
)
def test_a_command_prints_what_the_page_shows(page, folder, tmp_path, monkeypatch, capsys):
    words, pieces = shown(page, "rolloutbench compare", folder)
    if folder:
        shutil.copytree(ROOT / folder, tmp_path, dirs_exist_ok=True)
    else:
        (tmp_path / "experiments").symlink_to(ROOT / "experiments")
    monkeypatch.chdir(tmp_path)
    assert main([*words, "--verdict-only"]) == 0
    printed, at = " ".join(capsys.readouterr().out.split()), 0
    for piece in pieces:
        text = " ".join(piece.split())
        at = printed.find(text, at)
        assert at >= 0, f"{page.name} shows {text!r}, and it is not printed behind what is shown before:\n{printed}"
