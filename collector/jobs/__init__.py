"""Runs the attempts of the desired state on this appliance's executor."""
