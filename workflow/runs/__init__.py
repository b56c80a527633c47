"""What a run's files say: their paths, its jobs and attempts, its progress and its one state."""
