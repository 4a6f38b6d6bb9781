"""Prices that tenants set for the use of their own appliances."""
