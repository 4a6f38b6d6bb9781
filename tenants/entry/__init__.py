"""How appliances join and prove who they are: enrolment, certificates, the roll of agents."""
