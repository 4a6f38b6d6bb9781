"""Appliances: lists, states, heartbeats, events."""
