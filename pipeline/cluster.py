"""The Ray that a stage joins, or starts for itself. `launch`, `trials` and `search` use it, nobody else ray.

Joining takes seconds, most of them spent waiting. So a stage begins it before its own heavy imports, and
waits for it where it needs it.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

_SETTINGS = {
    "RAY_USAGE_STATS_ENABLED": "0",
    # At Ray's default of 2 s each report blocks the training loop for most of that time.
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.2",
}
# A process that watches for nodes which a cloud takes away; on one machine there are none.
_PREEMPTION_WATCHER = "RAY_TRAIN_ENABLE_PREEMPTION_WATCHER"


# What the workers of a cluster elsewhere are sent; libraries they have of their own.
_CODE = [Path(__file__).resolve().parent, Path(__file__).resolve().parent.parent / "models"]


@dataclass(frozen=True)
class JoinedCluster:
    """The Ray that this process runs on: there already, and left to whoever began it."""

    is_spread: bool  # as the driver found it

    def nodes(self) -> list[dict[str, float]]:
        import ray

        return _resources(ray.nodes())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *failure: object) -> None:
        pass


@dataclass
class Cluster:
    """A Ray to join, or to start on this machine. A context: begun by it, unless it was before, and left.

    Attributes:
        address: of a Ray that is up; None starts one for the time being.
        environment: variables that joining that one takes, whatever else was set.
        dashboard: one that is started has its dashboard. Of it Ray Train asks which jobs were cut off by
            the end of a trial, to give back what they held.
    """

    address: str | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    dashboard: bool = False
    _joining: Future[None] | None = field(default=None, repr=False)
    _thread: ThreadPoolExecutor | None = field(default=None, repr=False)

    @property
    def is_here(self) -> bool:
        """Begun for this project on this machine, which has its code and files."""
        return self.address is None or self.address.startswith(("127.0.0.1:", "localhost:"))

    @property
    def is_spread(self) -> bool:
        """Over machines that share no folder with this one, for all that is known."""
        return not self.is_here or len(self.nodes()) > 1

    def begin(self) -> None:
        """Join, or start, in the background."""
        if self._joining is not None:
            return
        for name, value in (_SETTINGS | ({_PREEMPTION_WATCHER: "0"} if self.is_here else {})).items():
            os.environ.setdefault(name, value)
        os.environ.update(self.environment)
        import ray  # noqa: F401  here: two threads that import the same modules can get in each other's way

        # The thread has to live as long as Ray: what it starts dies with it (Linux: PR_SET_PDEATHSIG).
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="ray")
        self._joining = self._thread.submit(self._join)

    def nodes(self) -> list[dict[str, float]]:
        """What each node offers, as soon as the Ray is there.

        Raises ValueError where it cannot be joined.
        """
        import ray

        try:
            assert self._joining is not None, "begin() comes first"
            self._joining.result()
        except (ConnectionError, TimeoutError, ray.exceptions.RayError) as error:
            where = f"the Ray at {self.address}" if self.address else "a Ray on this machine"
            raise ValueError(f"{where} cannot be joined: {error}") from error
        return _resources(ray.nodes())

    def close(self) -> None:
        if self._joining is None or self._thread is None:
            return
        failed = self._joining.exception()
        if failed is None:
            import ray

            ray.shutdown()
        self._thread.shutdown()
        self._joining = self._thread = None

    def __enter__(self) -> Self:
        self.begin()
        return self

    def __exit__(self, *failure: object) -> None:
        self.close()

    def _join(self) -> None:
        import ray

        ray.init(
            address=self.address or "local",
            runtime_env=None if self.is_here else {"py_modules": [str(folder) for folder in _CODE]},
            include_dashboard=None if self.address else self.dashboard,
            log_to_driver=False,
            configure_logging=True,
            logging_level=logging.WARNING,
        )


def _resources(nodes: Iterable[Mapping[str, Any]]) -> list[dict[str, float]]:
    return [node["Resources"] for node in nodes if node["Alive"]]
