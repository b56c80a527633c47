"""The pages name files and modules that exist, and those that are generated are current."""

import ast
import functools
import importlib.util
import re
import tomllib
from pathlib import Path

import pytest

from analysis.imports.formats import formats
from scripts import docs_tables
from workflow.cli import main
from workflow.preflight.variables import VARIABLES
from workflow.stacks import load_stack, stack_names

from .source import ROOMS, ROOT, files_of, texts_of, tree

PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
PACKAGES = (*ROOMS, "bench", "gpu_kit", "tests")
FOLDERS = (*PACKAGES, "rules", "envs", "profiles", "experiments", "scripts", "docs", "slurm", ".ci")
# What a run, a build or `rolloutbench new` makes, below folders of the repository.
MADE = re.compile(r"\.egg-info|/slurm\.conf$|^profiles/my(/config\.yaml)?$")


OF_OTHERS = {"trainers/patcher.py"}
CHECKS = [*ROOT.glob("workflow/preflight/*.py"), *ROOT.glob("trainers/**/*.py")]
LEVELS = {"impossible", "unequal", "odd"}


def codes_in(file):
    """The codes of the findings that a module makes: the first word that may be one, of what they are made with."""
    for node in ast.walk(tree(file)):
        made = getattr(node.func, "id", "") if isinstance(node, ast.Call) else ""
        if made in ("Finding", "_finding", "Rule", "Problem", "Behaviour"):
            given = [*node.args, *(one.value for one in node.keywords)]
            words = [str(one.value) for one in given if isinstance(one, ast.Constant)]
            codes = [one for one in words if re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", one) and one not in LEVELS]
            of_ledger = any(one.arg == "level" and getattr(one.value, "value", "") is None for one in node.keywords)
            yield from [] if of_ledger else codes[:1]


def codes_of_tables():
    """The codes of the rules in trainers' tables, of the preflight's texts, and of the variables that cost time."""
    for file in ROOT.glob("trainers/*/checks.toml"):
        yield from (row["code"] for row in tomllib.loads(file.read_text(encoding="utf-8"))["checks"])
    yield from tomllib.loads((ROOT / "workflow" / "preflight" / "findings.toml").read_text(encoding="utf-8"))
    yield from (one.name.lower().replace("_", "-") for one in VARIABLES)


def is_made_in(texts, code):
    """Whether a code stands there as a text (of several words), as a variable's name, or put together of two texts."""
    start, _, end = code.rpartition("-")
    return code in texts or code.upper().replace("-", "_") in texts or {start, f"-{end}"} <= texts


def exists(pattern, base=ROOT):
    return bool(list(base.glob(pattern))) if "*" in pattern else (base / pattern).exists()


def paths_in(page):
    """The repository's paths that a page names, in links, in backticks and in its commands."""
    for link in re.findall(r"\]\(([^)#\s]+)", page):
        if not re.match(r"[a-z]+:", link):
            yield f"link:{link}"
    page = page.replace("<br>", " ")  # a new line in a picture
    for word in re.findall(rf"(?<![\w./<>-])(?:{'|'.join(map(re.escape, FOLDERS))})/[\w./<>*{{}},+-]*[\w>*}}/]", page):
        if not MADE.search(word):
            yield word


@functools.cache
def ends_of_paths():
    files = [path.relative_to(ROOT) for folder in FOLDERS for path in (ROOT / folder).rglob("*.*")]
    return {Path(*path.parts[-n:]) for path in files for n in range(1, len(path.parts) + 1)}


def bare_names_in(page):
    """Names of modules in backticks, alone or with the end of their path."""
    # setup.py is every package's own, and verl's path begins with its name.
    return set(re.findall(r"`((?!verl/)(?:[a-z_]+/)*[a-z_]+\.(?:py|smk))`", page)) - {"setup.py"}


def modules_in(page):
    """The modules that a page names: after `python -m`, or in backticks with dots."""
    yield from re.findall(rf"(?:python -m|`)\s?((?:{'|'.join(PACKAGES)})(?:\.\w+)+)(?=[`\s])", page)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_what_a_page_names_exists(page):
    text = page.read_text(encoding="utf-8")
    missing = []
    for word in paths_in(text):
        if word.startswith("link:") and page.parent != ROOT:
            continue  # tests/test_site.py follows them, with their anchors
        base, name = (page.parent, word[5:]) if word.startswith("link:") else (ROOT, word)
        pattern = re.sub(r"<[^>]*>|\{[^}]*\}", "*", name.split(":")[0]).rstrip("/")
        if not exists(pattern, base):
            missing.append(word)
    missing += sorted(name for name in bare_names_in(text) if Path(name) not in ends_of_paths())
    for module in modules_in(text):
        try:
            found = importlib.util.find_spec(module) is not None
        except ModuleNotFoundError:
            found = False
        # A function or a class of a module.
        if not found and importlib.util.find_spec(module.rpartition(".")[0]) is None:
            missing.append(module)
    assert not missing


def commands_in(page):
    """The `rolloutbench` commands of a page's code blocks, and what follows each."""
    for line in page.replace("\\\n", " ").splitlines():
        if found := re.match(r"\s*(?:\$ )?rolloutbench ([a-z][a-z-]*)((?: [^#|>]*)?)", line):
            yield found[1], found[2]


def test_the_pages_give_commands_the_flags_that_they_have(capsys):
    given = {}
    for page in PAGES:
        for command, rest in commands_in(page.read_text(encoding="utf-8")):
            given.setdefault(command, set()).update(re.findall(r"(?<!\S)--[a-z][a-z-]*", rest))
    assert len(given) >= 8 and {"--release", "--save"} <= given["compare"]
    unknown = []
    for command, flags in given.items():
        with pytest.raises(SystemExit) as ended:
            main([command, "--help"])
        assert ended.value.code == 0, command
        known = set(re.findall(r"--[a-z][a-z-]*", capsys.readouterr().out))
        # `run` passes Snakemake's own options on.
        known |= {"--until", "--config"} if command == "run" else set()
        unknown += [(command, flag) for flag in flags - known]
    assert unknown == []


def test_every_message_of_the_troubleshooting_page_is_one_of_the_programs():
    page = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
    messages = re.findall(r"^\| `([^`]*)` \|(?!\s*shows)", page.partition("## Before anything runs")[2], re.MULTILINE)
    assert len(messages) >= 20
    programs = [texts_of(file) for room in ROOMS for file in files_of(room)]
    unknown = []
    for message in messages:
        # Between two placeholders a whole piece, all of them in one module.
        pieces = [piece.strip() for piece in message.split("…") if len(piece.strip(" :;,.()")) > 3]
        assert pieces, message
        if not any(all(piece in program for piece in pieces) for program in programs):
            unknown.append(message)
    assert not unknown


@pytest.mark.parametrize("name", docs_tables.TABLES)
def test_a_table_that_repeats_the_codes_data_is_current(name):
    page = (ROOT / docs_tables.TABLES[name][0]).read_text(encoding="utf-8")
    assert docs_tables.page_with(name, page) == page, "run `make docs`"


def test_the_import_page_has_every_format():
    page = (ROOT / "docs" / "import.md").read_text(encoding="utf-8")
    rows = re.findall(
        r"^\| `([a-z-]+)` \|", page.partition("| format | what it is")[2].partition("\n\n")[0], re.MULTILINE
    )
    assert rows == list(formats())


def test_the_preflight_page_names_every_code_and_no_other():
    """Of what the preflight finds: the report's warnings are on its own pages."""
    page = (ROOT / "docs" / "preflight.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`([a-z0-9]+(?:-[a-z0-9]+)*)`", page))
    made = {code for file in CHECKS for code in codes_in(file)} | {*codes_of_tables()}
    assert len(made) > 40
    assert sorted(made - named) == []
    texts = {text for room in ROOMS for file in files_of(room) for text in texts_of(file).split("\0\n")} | made
    assert sorted(name for name in named if "-" in name and not is_made_in(texts, name)) == []


def test_what_the_code_says_of_its_own_files_exists():
    """In comments, docstrings and messages."""
    files = [file for room in ROOMS for file in files_of(room)]
    files += [*ROOT.glob("rules/*.smk"), *ROOT.glob("scripts/*.*"), *ROOT.glob("profiles/*/*.*"), ROOT / "config.yaml"]
    missing = []
    for file in files:
        for word in paths_in(file.read_text(encoding="utf-8")):
            pattern = re.sub(r"<[^>]*>|\{[^}]*\}", "*", word.split(":")[0]).rstrip("/")
            # Other projects have folders of these names, too.
            if not word.startswith("link:") and not exists(pattern) and word not in OF_OTHERS:
                missing.append((str(file.relative_to(ROOT)), word))
    assert not missing


def test_the_table_of_what_is_proven_has_every_stack_and_says_what_is_unproven_on_gpus():
    page = (ROOT / "docs" / "stacks.md").read_text(encoding="utf-8").partition("## What is proven where")[2]
    rows = re.findall(r"^\| ((?:`[\w-]+`(?:, )?)+) \| (.*) \|$", page.partition("\n## ")[0], re.MULTILINE)
    proven = {name: how for names, how in rows for name in re.findall(r"`([\w-]+)`", names)}
    assert sorted(proven) == sorted(stack_names())
    # Until one has trained on a GPU from its whole lock.
    assert all(("**unproven**" in proven[s.name].lower()) == (s.accelerator == "cuda") for s in map(load_stack, proven))


@pytest.mark.parametrize("file", docs_tables.PAGES)
def test_a_generated_page_is_fresh(file: str) -> None:
    assert (ROOT / file).read_text(encoding="utf-8") == docs_tables.PAGES[file](), "run `make docs`"
