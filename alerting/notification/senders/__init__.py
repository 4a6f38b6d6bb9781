"""Senders: one module for each service that delivers messages."""
