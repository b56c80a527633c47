"""Goldens: what must stay equal while the code is moved and rewritten, in `values/*.json`, which people can read.

They use the product from outside only (`snakemake`, `rolloutbench`, files). When a value differs on purpose:

    python -m tests.goldens.write --only formats

and `git diff` shows what has changed; the commit says why. The fingerprints are not changed like that: behind each of
them may lie GPU-days of training.
"""
