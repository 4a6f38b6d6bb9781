"""Reservations: appliances or GPUs that are kept for a project at certain times."""
