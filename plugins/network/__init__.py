"""Traffic of network interfaces."""
