"""Jobs, their placement on appliances, and their dispatch."""
