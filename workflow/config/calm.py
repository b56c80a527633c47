"""Snakemake's logger `calm`: prints a line for each longer job that starts or fails, warnings, and the full log's path.

What a job itself prints, such as a run's progress, reaches the terminal without any logger.
"""

from __future__ import annotations

import logging
import sys

from snakemake_interface_logger_plugins.base import LogHandlerBase
from snakemake_interface_logger_plugins.common import LogEvent

NAME = "snakemake_logger_plugin_calm"
# They take seconds, or say themselves that they begin.
_UNSAID = ("all", "plan", "settings", "stack", "inputs", "train", "collect")
# Snakemake's own, which has no event: where its log lies.
_HINT = "Complete log"
# The command that failed, and that one did: the line of the job and its own message say so.
_REPEATED = ("RuleException:\nCalledProcessError", "WorkflowError:\nAt least one job did not complete")


class LogHandler(LogHandlerBase):
    """Writes to stderr; Snakemake's log file keeps everything."""

    writes_to_stream, writes_to_file, needs_rulegraph = True, False, False
    # Its own filter and form: Snakemake's would leave out and add what --quiet says.
    has_filter, has_formatter = True, True

    def emit(self, record: logging.LogRecord) -> None:
        """Prints the record's line, if it has one."""
        if line := line_of(record):
            print(line, file=sys.stderr, flush=True)


def line_of(record: logging.LogRecord) -> str:
    """What is shown of a record; empty for most."""
    said = vars(record)
    event = said.get("event")
    if event == LogEvent.JOB_INFO:
        rule = said["rule_name"]
        return "" if rule in _UNSAID else " ".join([rule, *map(str, dict(said["wildcards"] or {}).values())])
    if event == LogEvent.JOB_ERROR:
        return f"{said['rule_name']} failed; log: {', '.join(said['log']) or 'none'}"
    text = record.getMessage()
    wanted = record.levelno >= logging.WARNING or text.startswith(_HINT)
    return text if wanted and text != "None" and not text.startswith(_REPEATED) else ""
