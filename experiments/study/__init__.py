"""The parts of experiments/consistency.py."""
