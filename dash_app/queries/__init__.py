"""The data of each tier: from store, session, scope and span to frozen dataclasses."""
