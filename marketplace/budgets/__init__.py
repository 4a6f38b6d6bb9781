"""Budgets: what a tenant, a project or a user may spend in a month, and what happens then."""
