"""Predicts the time of a step on a machine from its description. The program's dry run gives the step's tasks and bytes."""


class CannotPredict(ValueError):
    """An error. The text says what cannot be predicted, and what to do."""
