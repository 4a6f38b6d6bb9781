"""Images and stopped containers on appliances, and which of them are deleted when."""
