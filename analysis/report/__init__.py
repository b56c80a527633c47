"""The report: one page, the same tables as files, and the figures."""
