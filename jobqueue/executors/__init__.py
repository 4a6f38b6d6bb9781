"""Executors run attempts on an appliance: Docker, schedulers of Mesos, and a simulated one."""
