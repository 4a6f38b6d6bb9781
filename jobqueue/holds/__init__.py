"""Holds: what keeps jobs with GPUs of a tenant, of projects or of a user from starting."""
