"""How often to look for what may come at any time."""

_SHORTEST = 0.1
_SHARE = 0.1


def next_look(waited: float, longest: float) -> float:
    """Return after how many seconds to look again: a tenth of what has been waited already.

    What comes is so noticed late by at most a tenth of what it took, and what takes long is
    seldom asked for.

    Parameters
    ----------
    waited : float
        Seconds since the wait began.
    longest : float
        Seconds between two looks at the most; the least is 0.1.
    """
    return min(longest, max(_SHORTEST, _SHARE * waited))
