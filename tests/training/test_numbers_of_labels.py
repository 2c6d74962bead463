"""Which numbers of labels can be trained on."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from pipeline.corpus.tokens import UNLABELLED
from pipeline.training.classifier import chosen_documents, label_counts, num_labels_of, rows_for

# 161 labels of 3 classes, and documents without a label between them.
LABELS = np.repeat(np.array([0, UNLABELLED, 1, 2, UNLABELLED]), [60, 10, 50, 51, 7])
SHARD: Any = SimpleNamespace(labels=LABELS)


@pytest.mark.parametrize(
    ("wanted", "kept", "left_out"),
    [
        ([100, 400, 1600], [100], {400: "there are 161", 1600: "there are 161"}),
        (["all", 50], [50, 161], {}),
        ([161, "all"], [161], {}),
        ([2, 3], [3], {2: "there are 3 classes"}),
        ([400], [161], {400: "there are 161"}),
        ([2, 400], [161], {2: "there are 3 classes", 400: "there are 161"}),
    ],
)
def test_numbers_that_cannot_be_are_left_out_with_the_reason(wanted, kept, left_out):
    assert label_counts(wanted, SHARD) == (kept, left_out)


@pytest.mark.parametrize("wanted", [161, 5000, None])
def test_all_labels_are_taken_if_there_are_not_more(wanted):
    assert list(chosen_documents(SHARD, wanted, seed=1)) == list(np.flatnonzero(LABELS != UNLABELLED))


def test_fewer_labels_than_classes_are_refused_by_the_key():
    with pytest.raises(ValueError, match=r"^tune\.labels is 2, fewer than the 3 classes; raise it$"):
        chosen_documents(SHARD, 2, seed=1, key="tune.labels")


def test_the_number_of_labels_is_at_most_what_there_is():
    assert [num_labels_of(wanted, SHARD) for wanted in (7, 161, 400, "all")] == [7, 161, 161, 161]


@pytest.mark.parametrize(
    ("num_documents", "batch_rows", "rows"),
    [(24_380, 128, 128), (161, 128, 54), (100, 32, 32), (40, 128, 14), (9, 128, 8), (9, 4, 4)],
)
def test_batches_leave_several_steps_in_an_epoch_of_few_labels(num_documents, batch_rows, rows):
    assert rows_for(num_documents, batch_rows) == rows
