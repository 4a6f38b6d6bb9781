"""The appliance agent: plugin host, buffer on disk, sender, attempt runner."""
