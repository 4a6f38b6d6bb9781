"""What providers promise, what was measured of it, and the credits for what was not kept."""
