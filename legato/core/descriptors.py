"""How many files and connections this process may have open at once."""

import resource

MOST = 65_536  # some systems set no limit, and tables grow with it
RESERVED = 128  # for files, the engines' sockets, and connections that are told that there are too many


def raise_descriptor_limit() -> int:
    """Let this process open as many descriptors as the system lets it, up to MOST; returns how many."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _finite(hard)
    if _finite(soft) < wanted:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        except (OSError, ValueError):  # macOS names no limit and allows less
            return _finite(soft)
    return wanted


def hard_descriptor_limit() -> int:
    """What raise_descriptor_limit() reaches, as far as the system says."""
    return _finite(resource.getrlimit(resource.RLIMIT_NOFILE)[1])


def max_connections(num_descriptors: int) -> int:
    """How many of so many descriptors are for clients."""
    return max(1, num_descriptors - RESERVED)


def _finite(limit: int) -> int:
    return MOST if limit == resource.RLIM_INFINITY else min(limit, MOST)
