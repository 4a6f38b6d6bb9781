"""The program of a challenge, which runs in a container."""
