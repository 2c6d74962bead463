"""How this process gets its memory from the system."""

from __future__ import annotations

import ctypes
import sys

# Of malloc.h.
_M_TRIM_THRESHOLD, _M_MMAP_MAX, _M_ARENA_MAX = -1, -4, -8


def keep_freed_memory() -> bool:
    """Keep what is freed, for the next step; whether that can be had (it is glibc's).

    A step takes and frees hundreds of megabytes. By default these go back to the system, and come anew with
    every page to be mapped and zeroed: a tenth of a step's time or more (reports/benchmarks/README.md).
    """
    if not sys.platform.startswith("linux"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    # One arena: others, of the threads of the backward pass, could not keep large blocks.
    settings = {_M_MMAP_MAX: 0, _M_TRIM_THRESHOLD: 2**31 - 1, _M_ARENA_MAX: 1}
    granted = [mallopt(name, value) for name, value in settings.items()]
    return all(granted)
