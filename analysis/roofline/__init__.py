"""What is the least that a GPU needs for a step, and where is the rest? Floors, and the waterfall down to them."""
