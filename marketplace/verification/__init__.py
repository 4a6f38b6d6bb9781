"""Verification of appliances: whether they are what they claim to be."""
