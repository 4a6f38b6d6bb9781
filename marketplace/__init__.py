"""Appliances that tenants rent from each other, and what their use costs."""
