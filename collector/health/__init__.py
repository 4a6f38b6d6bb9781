"""Judges the health of this appliance and its GPUs from what the plugins read."""
