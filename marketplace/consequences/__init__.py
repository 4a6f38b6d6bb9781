"""Consequences of how providers keep their promises: order, listing, fee, suspension, way back."""
