"""Projects: groups of a tenant's users, with shares, quotas and a budget label."""
