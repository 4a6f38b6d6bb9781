"""Host of the simulated appliance."""
