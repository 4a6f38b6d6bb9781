"""One module per tier: its skeleton, and the callback that fills it."""
