"""Rules as users manage them: create, import, test, and try on past samples."""
