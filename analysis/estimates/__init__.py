"""Estimates how much faster an arm is, at equal work, in four ways with their intervals.

A ratio is made in this order: pairs.py pairs the steps, equal_work.py makes columns of them whose sums give the four
estimates, bootstrap.py resamples the sums into intervals, arm.py puts the four together for one arm, estimate_table.py
makes the table and its findings. comparable.py says which arms may be divided, noise.py what two equal runs differ by.
Beside it are gate.py (correctness), ranking.py (engines alone) and replays.py (a training and its engine alone).
"""
