"""What users make themselves: dashboards from panels, and saved views."""
