"""Sign-up of customers."""
