"""PyTorch's own index is asked only when no configured source has the torch wheel."""

import pytest

from workflow.stacks.uv import Uv, find_uv, torch_arguments

from .conftest import PYTHON, write_wheel

TORCH = "torch==9.9+cpu"


@pytest.fixture
def uv(site, index):
    """The real uv, knowing only the index on loopback."""
    return Uv(find_uv(), {**site.environ, "UV_DEFAULT_INDEX": index.url}, ())


def test_asked_only_when_no_source_has_it(uv, index, tmp_path):
    asked = ["--torch-backend", "cpu"]
    assert torch_arguments(uv, TORCH, "cpu", PYTHON) == asked
    index.add(write_wheel(tmp_path / "wheels", "torch", "9.9"))
    assert torch_arguments(uv, TORCH, "cpu", PYTHON) == asked, "of another build"
    write_wheel(tmp_path / "folder", "torch", "9.9+cpu")
    found = Uv(uv.binary, {**uv.environ, "UV_FIND_LINKS": str(tmp_path / "folder")}, ())
    assert torch_arguments(found, TORCH, "cpu", PYTHON) == []


def test_not_asked_where_the_user_forbids_or_chooses(uv):
    assert torch_arguments(Uv(uv.binary, uv.environ, ("--no-index",)), TORCH, "cpu", PYTHON) == []
    for own in ({"UV_OFFLINE": "1"}, {"UV_TORCH_BACKEND": "cu126"}):
        assert torch_arguments(Uv(uv.binary, {**uv.environ, **own}, ()), TORCH, "cpu", PYTHON) == []


def test_a_build_takes_torch_from_the_configured_source(site, index, tmp_path):
    index.add(write_wheel(tmp_path / "wheels", "torch", "9.9+cpu"))
    site.write_stack(TORCH + "\n", extra="torch_backend: cpu\n")
    assert site.run("lock", "tiny").returncode == 0
    built = site.build()
    assert built.returncode == 0, built.stderr
    assert "and PyTorch" not in built.stderr
