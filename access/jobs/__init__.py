"""Ways of users to their running jobs: terminals, files, logs and web pages."""
