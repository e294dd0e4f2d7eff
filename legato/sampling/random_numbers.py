"""Random numbers without state: a pure function of (seed, position), whatever the batch."""

_MASK = 2**64 - 1
_GOLDEN = 0x9E3779B97F4A7C15  # 2**64 / golden ratio, odd: consecutive counters land far apart


def uniform(seed: int, position: int) -> float:
    """The number in (0, 1), never 0 or 1, that belongs to `position` of the stream `seed`.

    seed  any integer; taken modulo 2**64
    The seed is mixed before the position is added, so that streams of neighbouring seeds are not shifts of
    one another. 52 bits and a half: the largest value is still below 1 in float64.
    """
    bits = _mix(_mix(seed & _MASK) + _GOLDEN * (position + 1))
    return ((bits >> 12) + 0.5) * 2.0**-52


def _mix(x: int) -> int:
    """A bijection of 64 bits in which every input bit moves every output bit.

    Source: finaliser of SplitMix64; Steele, Lea, Flood, doi:10.1145/2660193.2660195.
    """
    x &= _MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
    return x ^ (x >> 31)
