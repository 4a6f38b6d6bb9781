"""Runs jobs that only take their time, for demonstrations and tests."""
