"""Estimates how much faster an arm is, at equal work, in four ways with their intervals."""
