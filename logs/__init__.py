"""Logs of appliances and jobs and the portal's own events, in one search."""
