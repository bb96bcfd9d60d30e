"""Predicts the time of a step on a machine that is described, not at hand. What moves comes from the program's dry run."""


class CannotPredict(ValueError):
    """A sentence for the user: what cannot be predicted, and what to do."""
