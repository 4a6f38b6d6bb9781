"""What the operator does with tenants: quotas, use, clearing up, removal."""
