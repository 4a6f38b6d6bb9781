"""Traffic of block devices."""
