"""Goldens: what must stay equal, value by value, while the code is moved and rewritten.

They use the product from outside only (`snakemake`, `rolloutbench`, files), so a move of modules touches nothing here.
`values/*.json` hold digests. When one differs on purpose: compare the whole values of two checkouts, say in the commit
what changes and why, and store the new digests:

    python -m tests.goldens.write OUT      # in each checkout, then: diff -r OUT-before OUT-after
    python -m tests.goldens.write --store  # writes tests/goldens/values/

The fingerprints in `values/plans.json` are not changed like that: behind each of them may lie GPU-days of training.
"""
