"""A simulated market: what reputation and consequences do to providers over time."""
