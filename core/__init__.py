"""Basics of all packages: settings, database session, clock, errors, logging, IDs."""
