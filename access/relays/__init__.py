"""Relays: access points without a database, which the agent API serves and trusts."""
