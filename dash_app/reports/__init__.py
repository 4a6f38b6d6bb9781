"""Reports on a period: GPU time and energy, jobs, availability, alerts; as tables and files."""
