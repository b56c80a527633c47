"""Sources that are no files; what files are is in tests/answers/formats_by_their_content."""

import os

import pytest

from analysis.imports.formats import read_source
from common.errors import UserError


@pytest.mark.parametrize("form", [None, "verl-console"])
def test_a_pipe_is_no_source(tmp_path, form):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UserError, match="is neither a file nor a folder"):
        read_source(str(tmp_path / "pipe"), form, (), tmp_path)
