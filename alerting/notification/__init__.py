"""Notifications: who is told what, when, and over which service."""
