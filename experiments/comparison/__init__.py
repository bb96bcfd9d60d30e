"""The parts of experiments/compare.py: runs, equality, tables, plots, the report."""
