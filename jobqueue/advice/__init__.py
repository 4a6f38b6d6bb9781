"""Advice for owners of fleets: what is idle, what is short, and what more GPUs would change."""
