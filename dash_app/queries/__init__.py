"""What each tier asks: store, session, scope and span in, frozen dataclasses out."""
