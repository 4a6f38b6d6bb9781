"""What every answer owes: one shape of errors, ETags, idempotency keys, limits, headers."""
