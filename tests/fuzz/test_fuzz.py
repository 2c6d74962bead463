"""Check that any input is read to its last row or refused with a message, in a short run of each kind.

The inputs are the same in each run. `benchmarks/fuzz.py` tries more, and different ones.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given
from hypothesis import settings as profile

from tests.fuzz.kinds import NUM_CASES, all_kinds


@pytest.fixture(scope="module")
def kinds(tmp_path_factory):
    return all_kinds(tmp_path_factory.mktemp("written"))


@pytest.mark.parametrize("name", NUM_CASES)
def test_any_input_is_read_whole_or_refused(kinds, name):
    kind = kinds[name]

    @profile(
        max_examples=NUM_CASES[name],
        derandomize=True,
        database=None,
        deadline=None,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
    )
    @given(kind.cases)
    def holds(case):
        with tempfile.TemporaryDirectory() as folder:
            kind.check(case, Path(folder))

    holds()


def test_each_kind_has_its_number_of_cases(kinds):
    assert set(kinds) == set(NUM_CASES)
