"""Users' own dashboards, made of panels, and saved views."""
