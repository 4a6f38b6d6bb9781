"""Private networks of gangs: made and removed with the attempts of their members."""
