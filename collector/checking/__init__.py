"""What `vedette agent check` looks at."""
