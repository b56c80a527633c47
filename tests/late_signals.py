"""A Ctrl-C that interrupts no wait, as one that comes just before it: another thread takes the signal."""

from .importing import ROOT

_SITE = """
import signal, threading

def take_them():
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
    threading.Event().wait()

threading.Thread(target=take_them, daemon=True).start()
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
"""


def late_signals(folder):
    """The environment of a Python program whose waits no Ctrl-C interrupts: it hears of it when they are over."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "sitecustomize.py").write_text(_SITE)
    return {"PYTHONPATH": f"{folder}:{ROOT}"}
