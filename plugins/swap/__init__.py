"""Swap space and paging."""
