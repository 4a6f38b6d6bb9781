"""Runs jobs on the Docker engine of an appliance."""
