"""How much faster is an arm, at equal work, and how sure is that? Four estimates with their intervals."""
