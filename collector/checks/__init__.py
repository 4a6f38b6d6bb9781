"""The checks of `vedette agent check`."""
