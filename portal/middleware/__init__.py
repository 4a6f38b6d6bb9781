"""Cross-cutting handlers: errors, idempotency keys, rate limits, security headers."""
