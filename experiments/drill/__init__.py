"""The parts of experiments/drill.py, which kills processes of runs at random times and checks that nothing is lost."""
