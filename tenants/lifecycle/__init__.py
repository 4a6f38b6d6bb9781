"""Usage, quota warnings, pruning and removal of tenants."""
