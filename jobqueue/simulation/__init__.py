"""Replay of recorded jobs under other policies, orders and hardware."""
