"""Evaluates the health of this appliance and its GPUs from readings."""
