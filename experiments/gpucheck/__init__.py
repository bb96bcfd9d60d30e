"""What experiments/gpu_check.py is made of: where things are, the parts, the results as a table and a page."""
