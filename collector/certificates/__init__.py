"""This appliance's certificates: the one that the portal gave, and which is shown until when."""
