"""The vedette command: the composition root of every process."""
