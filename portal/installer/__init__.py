"""What hosts download to become appliances: a script and the packages of the agent."""
