"""Slices of this appliance's GPUs: MIG instances, MPS servers, and turns."""
