"""A kit for a GPU machine without a network: packed here (`pack.py`), run there by stages (`target.py`)."""
