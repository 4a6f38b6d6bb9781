"""What every part stands on: settings, database session, clock, errors, logging, ids."""
