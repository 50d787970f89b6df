"""What a trainer was given and cannot use."""


class Unfit(Exception):
    """One sentence: what is wrong, what was expected."""
