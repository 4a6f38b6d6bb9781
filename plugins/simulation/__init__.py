"""The simulated appliance, which simulated plugins read and the simulated executor drives."""
