"""What this appliance has."""

from plugins.inventory.reader import InventoryPlugin

__all__ = ["InventoryPlugin"]
