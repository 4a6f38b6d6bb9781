"""Swap space and paging."""

from plugins.swap.reader import SwapPlugin

__all__ = ["SwapPlugin"]
