"""Who is asking: sign-in, second factor, identity providers, support visits."""
