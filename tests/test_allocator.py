"""Freed memory stays with the process. The test starts its own, as the setting lasts as long as that."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc's allocator")

# Prints the minor page faults of a buffer that is allocated and freed repeatedly.
SCRIPT = """
import resource, sys, torch
from pipeline.machine.allocator import keep_freed_memory
if sys.argv[1] == "keep":
    assert keep_freed_memory()
for _ in range(30):  # aligned blocks find their places first
    torch.empty(2**24).fill_(1)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(10):
    torch.empty(2**24).fill_(1)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def page_faults(how: str) -> int:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, how], text=True, capture_output=True, check=True, timeout=120
    )
    return int(done.stdout)


def test_freed_memory_is_reused():
    assert page_faults("keep") * 100 < page_faults("as it is")
