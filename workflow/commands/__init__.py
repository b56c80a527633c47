"""The commands of `rolloutbench` that have a module of their own, and the table that describes all of them."""
