"""Runs the attempts that the portal wants on this appliance's executor."""
