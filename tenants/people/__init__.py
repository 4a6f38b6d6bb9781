"""The people: how they join, prove who they are, and are members of tenants."""
