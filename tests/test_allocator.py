"""What is freed stays with the process: in one of its own, as the setting lasts as long as that."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc's allocator")

# Minor page faults of a buffer that is taken and freed again and again.
SCRIPT = """
import resource, sys, torch
from pipeline.allocator import keep_freed_memory
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


def test_what_is_freed_is_not_fetched_anew():
    assert page_faults("keep") * 100 < page_faults("as it is")
