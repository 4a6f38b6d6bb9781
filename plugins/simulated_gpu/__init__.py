"""GPUs of the simulated appliance."""
