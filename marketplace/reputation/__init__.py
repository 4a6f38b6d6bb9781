"""Reputation of providers: distributions that evidence moves and time fades."""
