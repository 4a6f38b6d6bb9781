"""Dispatch: waiting jobs get appliances, and appliances their desired state."""
