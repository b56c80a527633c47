"""Pytest's part of `python -m bench mutants`: says which lines each test runs, or runs the chosen tests alone."""

from __future__ import annotations

import json
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path

import coverage
import pytest

from bench.mutants import FILES, PLACES


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--record-lines", metavar="FILE", help="write each passed test's lines and seconds of CPU there")
    parser.addoption("--chosen", metavar="FILE", help="run only the tests of this list, in its order")
    parser.addoption("--failed", metavar="FILE", help="write the list of the tests that failed there")


def pytest_configure(config: pytest.Config) -> None:
    if into := config.getoption("--record-lines"):
        config.pluginmanager.register(_Recorder(Path(into), Path(config.rootpath)))
    if into := config.getoption("--failed"):
        config.pluginmanager.register(_Failures(Path(into)))


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if chosen := config.getoption("--chosen"):
        order = {name: i for i, name in enumerate(json.loads(Path(chosen).read_text(encoding="utf-8")))}
        items[:] = sorted((item for item in items if item.nodeid in order), key=lambda item: order[item.nodeid])


class _Failures:
    def __init__(self, into: Path) -> None:
        self._into = into
        self._failed: dict[str, None] = {}
        into.unlink(missing_ok=True)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._failed[report.nodeid] = None

    def pytest_sessionfinish(self) -> None:
        self._into.write_text(json.dumps(list(self._failed)), encoding="utf-8")


class _Recorder:
    """Lines by test; what a fixture runs counts for all tests of the file, which may share it."""

    def __init__(self, into: Path, root: Path) -> None:
        self._into, self._root = into, root
        self._seconds: dict[str, float] = {}
        self._bad: set[str] = set()
        rooms = sorted({place.partition("/")[0] for place in (*PLACES, *FILES)})
        self._coverage = coverage.Coverage(data_file=None, source=rooms, config_file=False)
        self._coverage.start()

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Generator[None, None, None]:
        with self._timed(item.nodeid):
            self._coverage.switch_context(item.nodeid.partition("::")[0])
            return (yield)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, None, None]:
        with self._timed(item.nodeid):
            self._coverage.switch_context(item.nodeid)
            return (yield)

    @contextmanager
    def _timed(self, test: str) -> Iterator[None]:
        began = time.process_time()
        try:
            yield
        finally:
            self._seconds[test] = self._seconds.get(test, 0.0) + time.process_time() - began

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.outcome != "passed":
            self._bad.add(report.nodeid)

    def pytest_sessionfinish(self) -> None:
        self._coverage.stop()
        data = self._coverage.get_data()
        lines = {
            str(Path(file).relative_to(self._root)): data.contexts_by_lineno(file) for file in data.measured_files()
        }
        seconds = {test: took for test, took in self._seconds.items() if test not in self._bad}
        self._into.write_text(json.dumps({"lines": lines, "seconds": seconds}), encoding="utf-8")
