"""Who sends a request: agents by token or certificate."""
