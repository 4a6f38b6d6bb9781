"""A simulated appliance: what the simulated plugins read and the simulated executor drives."""
