"""What experiments/compare.py is made of: runs, equality, tables, plots, the report."""
