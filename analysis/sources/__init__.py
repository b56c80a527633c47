"""Where a step's timings are read from: one module for each source."""
