"""Periodic tasks of the portal: placement, alert rules, roll-ups, retention, sweeps."""
