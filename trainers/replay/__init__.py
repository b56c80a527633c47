"""Replay: an engine alone, on completions of given lengths, in the stack that would train."""

RELEASE = "1"
"""Of what a replay does in a step: another one is another comparison."""
