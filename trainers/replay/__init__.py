"""Replay: runs an engine alone on completions of given lengths, in a trainer's stack."""

RELEASE = "1"
"""The release of a replay's step; steps of two releases are not comparable."""
