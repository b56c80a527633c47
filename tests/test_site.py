"""The site of docs/ builds and is shown without a network, and its links and anchors lead somewhere."""

import re
import shutil
import subprocess
import sys

import pytest

from .importing import ROOT

# Whatever connects fails.
NO_NETWORK = "import runpy, socket; socket.socket.connect = None; runpy.run_module('sphinx', run_name='__main__')"


def build(source, out):
    """Builds as CONTRIBUTING.md says."""
    made = re.search(r"python -m sphinx (.*) docs ", (ROOT / "CONTRIBUTING.md").read_text())
    assert made
    command = [sys.executable, "-c", NO_NETWORK, *made[1].split(), str(source), str(out)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    done = build(ROOT / "docs", folder)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.full("whole workflows")
def test_the_site_has_every_page_of_docs(site):
    pages = [path.relative_to(ROOT / "docs") for path in (ROOT / "docs").rglob("*.md")]
    assert [page for page in pages if not (site / page).with_suffix(".html").is_file()] == []


def test_what_leads_nowhere_fails_the_build(tmp_path):
    shutil.copy(ROOT / "docs" / "conf.py", tmp_path)
    (tmp_path / "index.md").write_text(
        "# Index\n\n[a page](missing.md), [an anchor](other.md#nowhere), [a file](../missing.yaml), [here](#gone)\n\n"
        "```{toctree}\nother\n```\n"
    )
    (tmp_path / "other.md").write_text("# Other\n\n## A heading\n\n[good](#a-heading)\n")
    (tmp_path / "alone.md").write_text("# In no table of contents\n")
    done = build(tmp_path, tmp_path / "out")
    assert done.returncode != 0
    for name in ("missing.md", "nowhere", "missing.yaml", "gone", "alone.md"):
        assert name in done.stderr, name
    assert "a-heading" not in done.stderr
