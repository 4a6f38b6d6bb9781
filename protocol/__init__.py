"""What agent and portal exchange: message types that both sides encode and decode with msgspec."""
