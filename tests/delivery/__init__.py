"""Delivery under fire: real processes are killed at every step of an attempt's life."""
