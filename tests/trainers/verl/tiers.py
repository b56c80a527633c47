"""verl's releases as parameters of tests: one of them is enough for `make test`."""

import pytest

SECOND = pytest.mark.full("a second release of verl")
RELEASES = (pytest.param("0.4.1", marks=SECOND), "0.9.1")
