"""Our hooks in other packages: one table, and a release's source compared with it."""

import ast
import importlib
import re
import subprocess
import sys
import zipfile

import pytest

from common.errors import UserError
from common.files import ROOT
from node.hooks import Hook
from workflow.stacks.contract import compare, contract, rows

PACKAGES = {"trl", "swift", "verl", "vllm", "sglang"}
TABLES = {"trainers/trl", "trainers/swift", "trainers/verl", "engines/vllm", "engines/sglang"}


def users_of_hooks():
    files = [file for table in TABLES for file in sorted((ROOT / table).rglob("*.py"))]
    files += sorted((ROOT / "trainers/replay").glob("*.py"))
    return [file for file in files if file.name != "hooks.py"]


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
    hooked = {hook.attribute for _, hook in rows()}
    found = [
        f"{file.relative_to(ROOT)}:{one}"
        for file in users_of_hooks()
        for one in named_elsewhere(file.read_text(), hooked)
    ]
    assert not found


def test_each_row_says_what_is_relied_on_and_is_used():
    text = "".join(file.read_text() for file in users_of_hooks())
    used, unused = set(re.findall(r"hooks\.([A-Z][A-Z0-9_]+)", text)), []
    # Overridden by a class of ours, or the same method of another class.
    attributes = set(re.findall(r"    def (\w+)\(self", text))
    named = {}
    for table, _ in rows():
        module = importlib.import_module(table.removesuffix(".py").replace("/", "."))
        named |= {(table, name): value for name, value in vars(module).items() if isinstance(value, Hook)}
    attributes |= {hook.attribute for (_, name), hook in named.items() if name in used}
    for (table, name), hook in named.items():
        assert hook.relied_on and hook.module.split(".")[0] in PACKAGES, hook
        if name not in used and hook.attribute not in attributes:
            unused.append(f"{table}: {name}")
    assert not unused


def package(folder, **files):
    (folder / "trl").mkdir(parents=True)
    (folder / "trl/__init__.py").write_text("")
    for name, text in files.items():
        (folder / f"trl/{name}.py").write_text(text)
    return folder


def states(root, *hooks, version="1.0"):
    return [(one.state, one.detail) for one in compare([("table", hook) for hook in hooks], root, version)]


def test_a_release_has_moved_changed_and_lost_hooks(tmp_path):
    root = package(
        tmp_path,
        base="class Base:\n    def fit(self, data): ...\n",
        trainer="""
from .base import Base
try:
    from vllm import LLM
except ImportError:
    LLM = None
class Trainer(Base):
    def __init__(self):
        self.model = 1
    def step(self, a: int, *, b=2, **more) -> None: ...
""",
        other="async def moved(x): ...\nclass Holder:\n    def method(self): ...\n",
    )
    hook = lambda name, signature="", **more: Hook("trl.trainer", name, signature, "all", **more)  # noqa: E731
    assert states(root, hook("LLM"), hook("Trainer.model"), hook("Trainer.fit", "(self, data)")) == [("there", "")] * 3
    assert states(root, hook("Trainer.step", "(self, a, *, b, **more)"), hook("Trainer.step", "(self, ..., b)")) == [
        ("there", ""),
        ("there", ""),
    ]
    assert states(root, hook("Trainer.step", "(self, a)"), hook("Trainer.step", "(self, ..., c)")) == [
        ("signature changed", "(self, a) -> (self, a, *, b, **more)"),
        ("signature changed", "(self, ..., c) -> (self, a, *, b, **more)"),
    ]
    assert states(root, hook("moved", "(x)"), hook("Holder.method", "(self)")) == [("moved", "now in trl.other")] * 2
    assert states(root, hook("lost"), hook("Trainer.lost"), Hook("trl.none", "lost", "", "all")) == [("gone", "")] * 3
    assert states(root, hook("lost", since="1.1"), hook("lost", until="0.9"), hook("lost", since="0.9")) == [
        ("as expected not there", "since 1.1"),
        ("as expected not there", "until 0.9"),
        ("gone", ""),
    ]


def test_a_folder_and_a_wheel_are_read_and_never_imported(tmp_path):
    made = package(tmp_path / "site", __init__="raise SystemExit('imported')")
    (made / "trl-9.0.dist-info").mkdir()
    for given in (made, made / "trl"):
        found = contract(str(given))
        assert (found.package, found.version) == ("trl", "9.0") and len(found.to_read) == len(found.found)
    with zipfile.ZipFile(tmp_path / "trl-9.1-py3-none-any.whl", "w") as wheel:
        wheel.writestr("trl/__init__.py", "")
        wheel.writestr("trl-9.1.dist-info/METADATA", "")
    assert contract(str(tmp_path / "trl-9.1-py3-none-any.whl")).version == "9.1"
    with pytest.raises(UserError, match="has none of the packages"):
        contract(str(tmp_path))


def index(folder, monkeypatch):
    """pip's only source: trl 1.0, 1.1 (yanked), and 1.2 for a later Python."""
    page = folder / "simple/trl"
    page.mkdir(parents=True)
    links = ""
    for version, more in (
        ("1.0", ""),
        ("1.1", ' data-yanked="wrong loss"'),
        ("1.2", ' data-requires-python="&gt;=3.99"'),
    ):
        name = f"trl-{version}-py3-none-any.whl"
        with zipfile.ZipFile(page / name, "w") as wheel:
            wheel.writestr("trl/__init__.py", "")
            wheel.writestr(
                f"trl-{version}.dist-info/METADATA", f"Metadata-Version: 2.1\nName: trl\nVersion: {version}\n"
            )
            wheel.writestr(f"trl-{version}.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
            wheel.writestr(f"trl-{version}.dist-info/RECORD", "")
        links += f'<a href="{name}"{more}>{name}</a>'
    (page / "index.html").write_text(f"<!DOCTYPE html><html><body>{links}</body></html>")
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_INDEX_URL", (folder / "simple").as_uri())
    for name in ("PIP_EXTRA_INDEX_URL", "PIP_FIND_LINKS", "PIP_NO_INDEX"):
        monkeypatch.delenv(name, raising=False)


def test_releases_that_cannot_be_read_or_are_doubtful(tmp_path, monkeypatch):
    index(tmp_path, monkeypatch)
    assert contract("trl==1.1").doubt == "yanked: wrong loss"
    assert contract("trl==1.2").version == "1.2"  # read, not run: another Python is no obstacle
    command = [sys.executable, "-m", "workflow.stacks", "contract", "trl==1.7"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 1 and len(done.stderr.splitlines()) == 3, done.stderr
    assert "trl==1.7 does not exist" in done.stderr and "1.0, " in done.stderr


@pytest.mark.parametrize("given", ["trl>=1", "trl==1.*", "numpy==1", "no release"])
def test_what_is_no_release_is_refused_before_anything_is_downloaded(given):
    with pytest.raises(UserError):
        contract(given)


@pytest.mark.full("downloads five wheels")
@pytest.mark.parametrize(
    ("release", "there", "expected"),
    [
        ("trl==1.16.0", 29, 29),
        ("trl==1.15.0", 28, 29),
        ("verl==0.9.1", 29, 29),
        ("verl==0.4.1", 14, 14),
        ("ms-swift==4.5.3", 71, 71),
    ],
)
def test_real_releases(release, there, expected):
    found = contract(release)
    assert found.summary().split(": ")[1].startswith(f"{there} of {expected} ")
