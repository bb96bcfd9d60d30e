"""The drill: kills processes of a run at random moments and asks whether anything was lost (experiments/drill.py)."""
