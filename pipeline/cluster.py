"""The Ray that a stage joins, or starts for itself. With `launch`, the only import of ray.

Joining takes seconds, most of them spent waiting, or on what other processes import. So a stage begins
it before its own heavy imports, and waits for it where it needs it.
"""

from __future__ import annotations

import importlib
import logging
import os
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Self

# What Train hands on to its processes from the driver. A warm process serves if it was given the same.
_TRAIN_SETTINGS = {
    # At Ray's default of 2 s each report blocks the training loop for most of that time.
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.2",
    # As Train sets it for its controller: so the workers' processes are of one kind with that one.
    "RAY_WARN_BLOCKING_GET_INSIDE_ASYNC": "0",
}
# A process that watches for nodes which a cloud takes away; on one machine there are none.
_PREEMPTION_WATCHER = "RAY_TRAIN_ENABLE_PREEMPTION_WATCHER"
_LONGEST_WARM_UP_S = 60.0


@dataclass
class Cluster:
    """A Ray to join, or to start on this machine. A context: begun by it, unless it was before, and left.

    Attributes:
        address: of a Ray that is up; None starts one for the time being.
        environment: variables that joining that one takes, whatever else was set.
        num_processes: of Ray's that begin at once to import what they will need.
        imports: names of those modules.
    """

    address: str | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    num_processes: int = 2
    imports: tuple[str, ...] = ()
    _joining: Future[list[Any]] | None = field(default=None, repr=False)
    _thread: ThreadPoolExecutor | None = field(default=None, repr=False)

    def begin(self) -> None:
        """Join, or start, in the background."""
        if self._joining is not None:
            return
        for name, value in {"RAY_USAGE_STATS_ENABLED": "0", **self._train_settings()}.items():
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
            self._joined()
        except (ConnectionError, TimeoutError, ray.exceptions.RayError) as error:
            where = f"the Ray at {self.address}" if self.address else "a Ray on this machine"
            raise ValueError(f"{where} cannot be joined: {error}") from error
        return [node["Resources"] for node in ray.nodes() if node["Alive"]]

    def wait_until_warm(self) -> None:
        """A process asked for before a warm one is free would be started anew, and import all again."""
        import ray

        warm = self._joined()
        if warm:
            ray.wait(warm, num_returns=len(warm), timeout=_LONGEST_WARM_UP_S)

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

    def _train_settings(self) -> dict[str, str]:
        here = self.address is None or self.address.startswith("127.0.0.1:")
        return _TRAIN_SETTINGS | ({_PREEMPTION_WATCHER: "0"} if here else {})

    def _joined(self) -> list[Any]:
        assert self._joining is not None, "begin() comes first"
        return self._joining.result()

    def _join(self) -> list[Any]:
        import ray

        ray.init(
            address=self.address or "local",
            include_dashboard=None if self.address else False,
            log_to_driver=False,
            configure_logging=True,
            logging_level=logging.WARNING,
        )
        if not self.imports or "GPU" in ray.cluster_resources():
            return []  # a worker is shown its GPUs first, and imports torch then
        environment = {name: os.environ[name] for name in self._train_settings()}
        warm_up = ray.remote(num_cpus=0, max_retries=0, runtime_env={"env_vars": environment})(_warm_up)
        return [warm_up.remote(self.imports) for _ in range(self.num_processes)]


def _warm_up(modules: tuple[str, ...]) -> None:
    """In a process of Ray's, which then becomes Train's controller or one of its workers."""
    for module in modules:
        importlib.import_module(module)
