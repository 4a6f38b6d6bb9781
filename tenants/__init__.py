"""Tenants, users, roles and tokens; appliances and their enrollment."""
