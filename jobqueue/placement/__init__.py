"""Placement of waiting jobs on appliances: pure code, a snapshot in and decisions out."""
