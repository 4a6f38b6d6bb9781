"""Runs programs that write readings as `PUTVAL` lines, like collectd's exec plugin."""
