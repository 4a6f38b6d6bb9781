"""The demo: a simulated fleet and the people who use it, through the same doors as everybody."""
