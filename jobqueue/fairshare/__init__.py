"""The order of a tenant's queue: decayed usage, fair shares, and the points of each waiting job."""
