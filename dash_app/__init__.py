"""Dash dashboards in tiers: fleet, appliance, GPU, job."""
