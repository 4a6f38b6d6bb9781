"""Threshold rules, their states, and the notifications that follow."""
