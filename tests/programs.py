"""Programs that stand for others on PATH."""


def executable(path, text):
    """A program of this text, a shell's if it names no other; its folder is made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text if text.startswith("#!") else f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path
