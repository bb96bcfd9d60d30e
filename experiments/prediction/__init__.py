"""Predicts the time of a step on a machine that is described, not at hand. The program's dry run says what moves."""


class CannotPredict(ValueError):
    """A sentence for the user: what cannot be predicted, and what to do."""
