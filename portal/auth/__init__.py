"""Authentication: sign-in, second factor, identity providers, support sessions."""
