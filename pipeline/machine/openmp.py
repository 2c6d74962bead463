"""How the threads of OpenMP, with which torch computes, wait for one another."""

from __future__ import annotations

import os
from collections.abc import MutableMapping

SPIN_COUNT = "1000"


def limit_spinning(environment: MutableMapping[str, str] = os.environ) -> None:
    """Make waiting threads sleep soon. To be called before torch is loaded; child processes inherit it.

    By default GNU's OpenMP lets a thread spin for milliseconds. Beside another busy process it then takes the
    core that the thread it waits for needs. Sleeping at once costs a fifth of the speed on an idle machine,
    since waking takes longer than a small product (benchmarks/beside_busy.py). What the user has set stays.
    """
    if "OMP_WAIT_POLICY" not in environment:
        environment.setdefault("GOMP_SPINCOUNT", SPIN_COUNT)
