"""The report: its sections, and the page that they make."""
