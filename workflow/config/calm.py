"""Snakemake's logger `calm`: prints one line for each longer job that starts or fails, warnings, and the log's path.

A job's own output, such as a run's progress, reaches the terminal without a logger.
"""

from __future__ import annotations

import logging
import sys

from snakemake_interface_logger_plugins.base import LogHandlerBase
from snakemake_interface_logger_plugins.common import LogEvent

NAME = "snakemake_logger_plugin_calm"
# These rules take seconds, or announce their start themselves.
_QUIET_RULES = ("all", "plan", "settings", "stack", "inputs", "clear_", "train", "collect", "report")
# Snakemake's message with the path of its log has no event.
_LOG_PATH = "Complete log"
# The line of the failed job and the job's own message already report these.
_REPEATED = ("RuleException:\nCalledProcessError", "WorkflowError:\nAt least one job did not complete")


class LogHandler(LogHandlerBase):
    """Writes to stderr; Snakemake's log file keeps everything."""

    writes_to_stream, writes_to_file, needs_rulegraph = True, False, False
    # Snakemake's own filter and formatter would follow --quiet.
    has_filter, has_formatter = True, True

    def emit(self, record: logging.LogRecord) -> None:
        """Prints the record's line, if any."""
        if line := line_of(record):
            print(line, file=sys.stderr, flush=True)


def line_of(record: logging.LogRecord) -> str:
    """The line that shows a record; empty for most records."""
    fields = vars(record)
    event = fields.get("event")
    if event == LogEvent.JOB_INFO:
        rule = fields["rule_name"]
        return (
            ""
            if rule.startswith(_QUIET_RULES)
            else " ".join([rule, *map(str, dict(fields["wildcards"] or {}).values())])
        )
    if event == LogEvent.JOB_ERROR:
        return f"{fields['rule_name']} failed; log: {', '.join(fields['log']) or 'none'}"
    text = record.getMessage()
    wanted = record.levelno >= logging.WARNING or text.startswith(_LOG_PATH)
    return text if wanted and text != "None" and not text.startswith(_REPEATED) else ""
