"""Datasets of tenants: sources, versions, parts of content, copies on appliances."""
