"""A library to preload that needs another one and does not say where it lies, as torch_memory_saver's for CUDA 13."""

import shutil
import subprocess

import pytest

RUNTIME = "librbtrt.so.13"


def preloaded_library(folder):
    """The library to preload, and the one that it needs, in folders of their own; made by this machine's compiler."""
    cc = shutil.which("cc")
    if cc is None:
        pytest.skip("a library to preload needs a C compiler (Debian: apt-get install gcc libc6-dev)")
    runtime, preload = folder / "runtime" / RUNTIME, folder / "preload" / "librbtpreload.so"
    for path, text, linked in (
        (runtime, "int rbt_runtime(void) { return 13; }\n", [f"-Wl,-soname,{RUNTIME}"]),
        (preload, "int rbt_runtime(void);\nint rbt_hook(void) { return rbt_runtime(); }\n", [str(runtime)]),
    ):
        path.parent.mkdir(parents=True)
        source = path.with_suffix(".c")
        source.write_text(text)
        subprocess.run([cc, "-shared", "-fPIC", "-o", path, source, *linked], check=True)
    return preload, runtime
