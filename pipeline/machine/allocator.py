"""Settings of the memory allocator of this process."""

from __future__ import annotations

import ctypes
import sys

# From glibc's malloc.h.
_M_TRIM_THRESHOLD, _M_MMAP_MAX, _M_ARENA_MAX = -1, -4, -8


def keep_freed_memory() -> bool:
    """Make glibc keep freed memory for the next step, and return whether it does.

    A step allocates and frees hundreds of megabytes. By default these go back to the system, and mapping and
    zeroing their pages anew takes a tenth of the next step's time or more (reports/benchmarks/README.md).
    """
    if not sys.platform.startswith("linux"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    # One arena, since further ones, for the threads of the backward pass, could not keep large blocks.
    settings = {_M_MMAP_MAX: 0, _M_TRIM_THRESHOLD: 2**31 - 1, _M_ARENA_MAX: 1}
    granted = [mallopt(name, value) for name, value in settings.items()]
    return all(granted)
