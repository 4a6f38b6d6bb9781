"""Users: sign-in, sessions, tokens, memberships, invitations."""
