"""The queue as users see it: submit, change, stop, explain, schedule and delete jobs."""
