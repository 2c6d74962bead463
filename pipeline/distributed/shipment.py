"""A shipment goes along with a job: credentials for the bucket, and the files that the job reads."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from pipeline.distributed.cluster import Cluster
from pipeline.distributed.settings import Run
from pipeline.storage.input_shipping import SHARED_FILES, Published, publish

T = TypeVar("T")


def credentials() -> dict[str, str]:
    """The driver's credentials for a bucket. Workers need them, as their Ray may have started without."""
    return {name: value for name, value in os.environ.items() if name.startswith("AWS_")}


@dataclass(frozen=True)
class Shipment:
    """Sent to a worker beside a job, which it makes usable there."""

    inputs: Published = SHARED_FILES
    environment: Mapping[str, str] = field(default_factory=credentials, repr=False)

    def unpack(self, value: T) -> T:
        """Set the credentials; return the job with paths to local copies of the folders that it reads."""
        os.environ.update(self.environment)
        return self.inputs.fetched(value)


def ship(cluster: Cluster, storage: str, value: Any, run: Run) -> Shipment:
    """Publish the folders that jobs or trials read in run.storage, unless all workers see the driver's files.

    Raises StorageError.
    """
    if not cluster.is_spread:
        return Shipment()
    return Shipment(run.patiently(f"{storage} cannot be written", lambda: publish(storage, value)))
