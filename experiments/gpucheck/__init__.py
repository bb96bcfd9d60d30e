"""The modules of experiments/gpu_check.py: its parts, the paths of programs and libraries, and the results as tables and a page."""
