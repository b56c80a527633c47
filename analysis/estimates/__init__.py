"""Estimates how much faster an arm is, at equal work and per step.

A ratio is made in this order: compared.py chooses the steps, ratio.py makes one number a run of them and compares the
arms' numbers, estimate_table.py makes the table and its findings. comparable.py says which arms may be divided,
gate.py whether a faster arm trains equally well.
"""
