"""Offers of providers: which appliances others may rent, under which terms and at which times."""
