"""The parts of experiments/gpu_check.py: where things are, the parts, the results as a table and a page."""
