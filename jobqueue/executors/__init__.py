"""What runs attempts on an appliance: Docker, Marathon, simulated."""
