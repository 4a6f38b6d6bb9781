"""Charts of alert rules for messages."""
