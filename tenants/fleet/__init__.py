"""Appliances: lists, life, changes, and what happened to them."""
