"""Gangs: their frameworks and private networks."""
