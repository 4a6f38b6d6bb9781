"""Hardware inventory."""
