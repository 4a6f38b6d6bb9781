"""Files for the members of MPI's and Ray's gangs, which the agent mounts in their containers."""
