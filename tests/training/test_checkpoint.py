from __future__ import annotations

import json
import random
import re
import sys
import threading
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from pipeline.artifacts import checkpoint_store, tensor_folder
from pipeline.artifacts.checkpoint_store import CheckpointStore
from pipeline.artifacts.model_folder import ModelFolder, export_model, load_classifier, load_model
from pipeline.artifacts.tensor_folder import read_folder, verify_folder, write_folder
from pipeline.distributed.failures import is_settings_failure
from pipeline.files.manifest import write_manifest
from pipeline.storage import lease
from pipeline.storage.address import open_storage
from pipeline.storage.bucket import Bucket
from pipeline.storage.lease import Lease, LeaseLostError, acquire
from pipeline.storage.patience import StorageError
from pipeline.training.cards import HeadCard, ModelCard, build_classifier, build_encoder, check_match
from pipeline.training.checkpoint import Checkpoint
from pipeline.training.context import Context
from tests.test_lease import of_another_machine


def checkpoint_at(step: int) -> Checkpoint:
    generator = torch.Generator().manual_seed(step)
    matrix = torch.randn(6, 5, generator=generator)
    tensors = {
        "model.a": matrix,
        "model.same": matrix,
        "turned": matrix.t(),
        "count": torch.tensor(float(step)),
    }
    return Checkpoint(step, tensors, {"step": step, "losses": [0.1, 1e300], "nested": {"none": None}})


def assert_same(found: Checkpoint | None, wanted: Checkpoint) -> None:
    assert found is not None
    assert (found.step, found.state) == (wanted.step, wanted.state)
    assert found.tensors.keys() == wanted.tensors.keys()
    for name, tensor in wanted.tensors.items():
        assert torch.equal(found.tensors[name], tensor)


def filled(folder: Path, steps: list[int], **settings: Any) -> tuple[CheckpointStore, list[str]]:
    warnings: list[str] = []
    store = CheckpointStore(str(folder), warn=warnings.append, **settings)
    for step in steps:
        store.save(checkpoint_at(step))
    return store, warnings


def steps_in(folder: Path) -> list[int]:
    return sorted(int(path.name.removeprefix("step-")) for path in folder.glob("step-*"))


@pytest.fixture(params=["folder", "bucket"])
def address(request, tmp_path) -> str:
    if request.param == "folder":
        return str(tmp_path / "checkpoints")
    return str(request.getfixturevalue("bucket"))


def test_the_newest_comes_back_as_it_was(address):
    store = CheckpointStore(address)
    assert store.newest() is None
    for step in (9, 10, 100):
        store.save(checkpoint_at(step))
        assert_same(store.newest(), checkpoint_at(step))


@pytest.mark.parametrize("keep", [1, 2, 3])
def test_only_the_newest_are_kept(address, keep):
    store = CheckpointStore(address, keep)
    for step in (1, 2, 30, 200):
        store.save(checkpoint_at(step))
    names = open_storage(address).names()
    assert [int(name.removeprefix("step-")) for name in names] == [1, 2, 30, 200][-keep:]


FILES = ("tensors.safetensors", "state.json", "manifest.json")


@pytest.mark.parametrize("name", FILES)
def test_a_torn_one_is_named_and_the_one_before_it_used(tmp_path, name):
    store, warnings = filled(tmp_path, [1, 2])
    file = tmp_path / "step-000000002" / name
    whole = file.read_bytes()
    offsets = [0, 1, len(whole) - 1, *random.Random(0).sample(range(len(whole)), 5)]
    for offset in offsets:
        file.write_bytes(whole[:offset])
        if name == "manifest.json" and offset == len(whole) - 1:
            continue  # only the line end is missing: it is complete
        warnings.clear()
        assert_same(store.newest(), checkpoint_at(1))
        (warning,) = warnings
        assert "step-000000002 is skipped" in warning
        assert name in warning


@pytest.mark.parametrize("name", FILES[:2])
def test_one_flipped_bit_is_found(tmp_path, name):
    store, warnings = filled(tmp_path, [1, 2])
    file = tmp_path / "step-000000002" / name
    whole = file.read_bytes()
    for offset in random.Random(1).sample(range(len(whole)), 5):
        altered = bytearray(whole)
        altered[offset] ^= 1 << (offset % 8)
        file.write_bytes(altered)
        warnings.clear()
        assert_same(store.newest(), checkpoint_at(1))
        assert len(warnings) == 1
        assert f"{name} was altered" in warnings[0]


@pytest.mark.parametrize("name", FILES)
def test_a_missing_file_is_found(address, name):
    warnings: list[str] = []
    store = CheckpointStore(address, warn=warnings.append)
    for step in (1, 2):
        store.save(checkpoint_at(step))
    open_storage(address).remove(f"step-000000002/{name}")
    assert_same(store.newest(), checkpoint_at(1))
    assert len(warnings) == 1
    assert name in warnings[0]


def test_a_manifest_of_another_shape_is_passed_over(tmp_path):
    store, warnings = filled(tmp_path, [1, 2])
    for content in ("[]", '{"state.json": 3}', '{"state.json": {}}', "null", "{}"):
        (tmp_path / "step-000000002" / "manifest.json").write_text(content)
        warnings.clear()
        assert_same(store.newest(), checkpoint_at(1))
        assert len(warnings) == 1


def test_none_is_left_when_all_are_torn(tmp_path):
    store, warnings = filled(tmp_path, [1, 2])
    for step in (1, 2):
        (tmp_path / f"step-{step:09d}" / "state.json").write_text("{")
    assert store.newest() is None
    assert len(warnings) == 2


def test_a_torn_one_is_replaced_when_its_step_comes_again(address):
    store = CheckpointStore(address)
    for step in (1, 2):
        store.save(checkpoint_at(step))
    open_storage(address).write("step-000000002/state.json", b"{")
    store.save(checkpoint_at(2))
    assert_same(store.newest(), checkpoint_at(2))


def test_torn_ones_do_not_push_out_those_of_a_run_that_starts_afresh(tmp_path):
    store, _ = filled(tmp_path, [10, 11], keep=2)
    for step in (10, 11):
        (tmp_path / f"step-{step:09d}" / "state.json").write_text("{")
    store.save(checkpoint_at(3))
    assert_same(store.newest(), checkpoint_at(3))


def test_a_half_written_one_is_never_listed(tmp_path, monkeypatch):
    store, warnings = filled(tmp_path, [1])
    seen: list[int] = []

    def interrupted(folder: Path, names: Any) -> None:
        newest = store.newest() if not seen else None  # as seen by another process
        seen.append(newest.step if newest else -1)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(tensor_folder, "verify_folder", lambda folder: None)
        patch.setattr(tensor_folder, "write_manifest", interrupted)
        with pytest.raises(KeyboardInterrupt):
            store.save(checkpoint_at(2))
    assert seen == [1]
    assert steps_in(tmp_path) == [1]
    assert_same(store.newest(), checkpoint_at(1))
    assert warnings == []


def test_what_a_killed_writer_left_behind_is_never_listed(tmp_path, monkeypatch):
    store, warnings = filled(tmp_path, [1])
    names: list[str] = []
    real = tensor_folder.write_folder

    def observed(folder: Path, *arguments: Any) -> None:
        real(folder, *arguments)
        names.append(folder.name)

    monkeypatch.setattr(checkpoint_store, "write_folder", observed)
    store.save(checkpoint_at(2))
    (aside,) = names
    (tmp_path / aside).mkdir()  # as after a SIGKILL
    (tmp_path / aside / "tensors.safetensors").write_bytes(b"half")
    assert_same(store.newest(), checkpoint_at(2))
    store.save(checkpoint_at(3))
    assert steps_in(tmp_path) == [2, 3]
    assert warnings == []


def test_tensors_are_safetensors_and_the_rest_is_json(tmp_path):
    from safetensors import safe_open

    filled(tmp_path, [1])
    folder = tmp_path / "step-000000001"
    assert sorted(path.name for path in folder.iterdir()) == sorted(FILES)
    with safe_open(str(folder / "tensors.safetensors"), "pt") as file:
        assert sorted(file.keys()) == sorted(checkpoint_at(1).tensors)
    for name in FILES[1:]:
        assert isinstance(json.loads((folder / name).read_text()), dict)
    assert json.loads((folder / "manifest.json").read_text()).keys() == set(FILES[:2])


def with_state(folder: Path, state: dict[str, Any]) -> None:
    """Write a complete folder with exactly this state, as another version of headstart would."""
    folder.mkdir(exist_ok=True)
    write_folder(folder, checkpoint_at(2).tensors, state)


def test_a_checkpoint_says_its_format_and_the_loop_does_not_see_it(tmp_path):
    store, _ = filled(tmp_path, [1])
    assert json.loads((tmp_path / "step-000000001" / "state.json").read_text())["format"] == 2
    assert_same(store.newest(), checkpoint_at(1))


@pytest.mark.parametrize("found", [3, 10, 1, 0, "2.1", None, []])
def test_another_format_is_refused_by_name_and_not_skipped(tmp_path, found):
    store, warnings = filled(tmp_path, [1])
    with_state(tmp_path / "step-000000002", {"format": found, "weights": "elsewhere"})
    other = re.escape(str(found))
    message = rf"step-000000002 has format {other}; this headstart reads format 2\. Resume .* wrote it"
    for read in (store.newest, lambda: store.at(2)):
        with pytest.raises(StorageError, match=message):
            read()
    assert warnings == []
    assert steps_in(tmp_path) == [1, 2]


def test_a_newer_format_is_refused_even_if_it_keeps_its_tensors_in_another_file(tmp_path):
    folder = tmp_path / "step-000000002"
    with_state(folder, {"format": 3})
    (folder / "tensors.safetensors").rename(folder / "tensors.bin")
    write_manifest(folder, ["state.json", "tensors.bin"])
    with pytest.raises(StorageError, match="step-000000002 has format 3"):
        CheckpointStore(str(tmp_path)).newest()


def test_a_newer_format_is_no_failure_of_the_settings(tmp_path):
    """Otherwise a search would record it as the failure of a trial."""
    with_state(tmp_path / "step-000000002", {"format": 3})
    with pytest.raises(StorageError) as refused:
        CheckpointStore(str(tmp_path)).newest()
    assert not is_settings_failure(refused.value)


def test_extra_files_are_copied_and_verified(tmp_path):
    extra_file = tmp_path / "tokenizer.model"
    extra_file.write_bytes(b"pieces")
    folder = tmp_path / "model"
    folder.mkdir()
    write_folder(folder, {}, {"a": 1}, {extra_file.name: extra_file.read_bytes()})
    assert read_folder(folder) == ({}, {"a": 1})
    (folder / "tokenizer.model").write_bytes(b"pieceS")
    with pytest.raises(ValueError, match=r"tokenizer\.model was altered"):
        verify_folder(folder)


CONFIG: dict[str, Any] = {
    "embedding_dim": 4, "hidden_dim": 6, "num_layers": 2, "tie_weights": True, "embedding_dropout": 0.1,
    "input_dropout": 0.1, "hidden_dropout": 0.1, "output_dropout": 0.1, "weight_dropout": 0.1,
}  # fmt: skip
CARD = ModelCard(
    kind="classifier",
    family="awd_lstm",
    config=CONFIG,
    vocab_size=11,
    pad_id=0,
    direction="backward",
    tokenizer_sha256="abc",
    stage="finetune_classifier",
    key="0123",
    head=HeadCard(("bad", "good"), "concat", 5, (0.4, 0.1), 3, 20, {"unicode": "NFC"}),
)


def test_an_exported_classifier_predicts_as_before(tmp_path):
    assert CARD.head is not None
    model = build_classifier(build_encoder(CARD)[0], CARD.head).eval()
    ids = torch.randint(11, (3, 7))
    mask = torch.ones(3, 7, dtype=torch.bool)
    export_model(tmp_path / "out", model.state_dict(), CARD)
    loaded, card, head = load_classifier(tmp_path / "out")
    assert (card, head) == (CARD, CARD.head)
    assert torch.equal(loaded(ids, mask), model(ids, mask))


def test_a_card_is_read_without_loading_its_weights(tmp_path, monkeypatch):
    export_model(tmp_path / "out", {"a": torch.ones(2)}, CARD)

    def never(path: Path) -> Any:
        raise AssertionError("weights are not to be loaded")

    monkeypatch.setattr(tensor_folder, "read_tensors", never)
    assert ModelFolder.at(tmp_path / "out").card() == CARD


@pytest.mark.parametrize("name", FILES[:2])
def test_a_card_is_refused_if_its_folder_is_altered(tmp_path, name):
    export_model(tmp_path / "out", {"a": torch.ones(2)}, CARD)
    file = tmp_path / "out" / name
    altered = bytearray(file.read_bytes())
    altered[-2] ^= 1
    file.write_bytes(altered)
    with pytest.raises(ValueError, match=f"{name} was altered"):
        ModelFolder.at(tmp_path / "out").card()


def test_a_language_model_is_no_classifier(tmp_path):
    export_model(tmp_path, {}, replace(CARD, kind="language_model", head=None))
    with pytest.raises(ValueError, match="holds a language_model; expected a classifier"):
        load_classifier(tmp_path)


def test_a_checkpoint_is_no_model(tmp_path):
    filled(tmp_path, [1])
    with pytest.raises(ValueError, match=r"state\.json is no model card"):
        load_model(tmp_path / "step-000000001")


def test_a_folder_without_a_model_is_refused(tmp_path):
    with pytest.raises(ValueError, match="no finished checkpoint or model"):
        load_model(tmp_path / "nothing")


def test_a_failing_export_leaves_what_was_there(tmp_path):
    export_model(tmp_path / "out", {"a": torch.ones(2)}, CARD)
    with pytest.raises(FileNotFoundError):
        export_model(tmp_path / "out", {"a": torch.zeros(2)}, CARD, [tmp_path / "missing"])
    assert torch.equal(load_model(tmp_path / "out")[0]["a"], torch.ones(2))
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_the_card_survives_as_json():
    assert json.loads(json.dumps(asdict(CARD)))["config"] == CONFIG


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tokenizer_sha256": "xyz"}, "has tokenizer_sha256 xyz, finetune_classifier needs abc"),
        ({"vocab_size": 12}, "has vocab_size 12, finetune_classifier needs 11"),
        ({"direction": "forward"}, "has direction forward, finetune_classifier needs backward"),
        ({"family": "gpt"}, "has family gpt, finetune_classifier needs awd_lstm"),
        (
            {"config": CONFIG | {"hidden_dim": 7}},
            "has hidden_dim: 7, config.hidden_dim of this head start is 6",
        ),
        ({"config": CONFIG | {"tie_weights": False}}, "has tie_weights: False"),
    ],
)
def test_a_starting_model_that_does_not_match_is_refused(changes, message):
    with pytest.raises(ValueError, match=message) as refused:
        check_match(replace(CARD, **changes), CARD, Path("data/general_lm"))
    assert "data/general_lm" in str(refused.value)


def test_a_starting_model_may_have_had_other_dropouts():
    other = replace(CARD, config=CONFIG | {"weight_dropout": 0.9}, key="other", stage="pretrain_lm")
    assert check_match(other, CARD, Path("x")) is None  # type: ignore[func-returns-value]


def test_extra_files_come_back(address):
    store = CheckpointStore(address)
    store.save(replace(checkpoint_at(1), extra_files={"curve.jsonl": b"a line\n"}))
    found = store.newest()
    assert found is not None
    assert found.extra_files == {"curve.jsonl": b"a line\n"}


def test_the_checkpoint_of_a_step_is_found_and_one_that_is_not_there_is_refused(address):
    store = CheckpointStore(address)
    for step in (1, 2):
        store.save(checkpoint_at(step))
    assert_same(store.at(1), checkpoint_at(1))
    with pytest.raises(ValueError, match=r"step-000000007 does not exist .* a place that all workers share"):
        store.at(7)


def test_who_may_not_write_changes_nothing(address):
    def refuse() -> None:
        raise ValueError("another one holds it")

    CheckpointStore(address).save(checkpoint_at(5))
    orphan = CheckpointStore(address, keep=1, check=refuse)
    with pytest.raises(ValueError, match="another one holds it"):
        orphan.save(checkpoint_at(6))
    with pytest.raises(ValueError, match="another one holds it"):
        orphan.clear()
    assert open_storage(address).names() == ["step-000000005"]
    assert_same(orphan.newest(), checkpoint_at(5))


def test_who_loses_the_run_while_writing_does_not_publish(address):
    answers = iter([True, False])

    def check() -> None:
        if not next(answers):
            raise ValueError("another one holds it")

    store = CheckpointStore(address, check=check)
    with pytest.raises(ValueError, match="another one holds it"):
        store.save(checkpoint_at(6))
    assert open_storage(address).files() == []


def held_by(address: str, lease: Lease) -> CheckpointStore:
    return CheckpointStore(f"{address}/checkpoints", check=lease.fence.check, lease_number=lease.fence.number)


def spent(seconds: int) -> Checkpoint:
    """A checkpoint of step 5 that differs from others of the same step."""
    return replace(checkpoint_at(5), state={"spent": seconds})


@pytest.mark.parametrize("stalls_in", FILES)
@pytest.mark.parametrize("then", ["goes on", "is killed"])
def test_who_was_followed_while_uploading_does_not_touch_what_the_follower_published(
    bucket, monkeypatch, stalls_in, then
):
    stalled, go_on = threading.Event(), threading.Event()
    real = Bucket._upload

    def upload(self: Any, file: Path, path: str) -> None:
        if threading.current_thread() is slow and file.name == stalls_in:
            stalled.set()
            assert go_on.wait(300)
            if then == "is killed":  # right after the upload
                real(self, file, path)
                sys.exit()
        real(self, file, path)

    monkeypatch.setattr(Bucket, "_upload", upload)
    monkeypatch.setattr(lease, "SILENT_S", 0.1)
    first = acquire(bucket)
    first._over.set()  # as if its machine hung
    of_another_machine(bucket, first.fence.number)
    former = held_by(bucket, first)
    told: list[str] = []

    def save() -> None:
        try:
            former.save(spent(1))
        except (LeaseLostError, SystemExit) as error:
            told.append(str(error))

    slow = threading.Thread(target=save)
    slow.start()
    assert stalled.wait(300)
    with acquire(bucket) as second:
        follower = held_by(bucket, second)
        follower.save(spent(2))
        go_on.set()
        slow.join()
        assert_same(follower.newest(), spent(2))
        assert [name for name in follower._names() if name.endswith("2")] == ["step-000000005.000002"]
        if stalls_in != "manifest.json" and then == "goes on":
            assert "another process has taken over this run" in told[0]
            assert follower._names() == ["step-000000005.000002"]  # its uploads are removed
        follower.save(checkpoint_at(6))
        assert_same(follower.newest(), checkpoint_at(6))
        open_storage(f"{bucket}/checkpoints").remove("step-000000006.000002")
        assert_same(follower.newest(), spent(2))


def test_checkpoints_of_several_holders_and_of_earlier_versions_are_gone_on_from(address):
    CheckpointStore(address).save(checkpoint_at(1))
    store = CheckpointStore(address, keep=4)
    assert_same(store.newest(), checkpoint_at(1))
    for number in (1, 2, 10):
        CheckpointStore(address, keep=4, lease_number=number).save(
            replace(spent(number), lease_number=number)
        )
        newest = store.newest()
        assert_same(newest, spent(number))
        assert newest is not None
        assert newest.lease_number == number
    assert_same(store.at(5, 2), spent(2))
    assert_same(store.at(1), checkpoint_at(1))
    CheckpointStore(address, keep=2, lease_number=11).save(checkpoint_at(6))
    assert open_storage(address).names() == ["step-000000005.000010", "step-000000006.000011"]


def test_all_workers_go_on_from_the_one_that_the_first_found(tmp_path):
    for number in (1, 2, 3):
        CheckpointStore(str(tmp_path), keep=4, lease_number=number).save(spent(number))
    open_storage(str(tmp_path)).write("step-000000005.000003/state.json", b"{")
    store = CheckpointStore(str(tmp_path), lease_number=4)
    told: list[torch.Tensor] = []

    def tell(numbers: torch.Tensor) -> torch.Tensor:
        told.append(numbers)
        return numbers

    assert_same(Context(store=store, world=2, all_reduce=tell).resume_point(), spent(2))
    second = Context(rank=1, store=store, world=2, all_reduce=lambda numbers: numbers + told[0])
    assert_same(second.resume_point(), spent(2))


def test_a_damaged_one_of_a_former_holder_does_not_count_among_those_kept(address):
    for step in (1, 2):
        CheckpointStore(address, lease_number=1).save(checkpoint_at(step))
    open_storage(address).write("step-000000002.000001/state.json", b"{")
    store = CheckpointStore(address, keep=2, lease_number=2)
    assert_same(store.newest(), checkpoint_at(1))
    store.save(checkpoint_at(2))
    assert open_storage(address).names() == ["step-000000001.000001", "step-000000002.000002"]


def test_a_folder_of_a_bucket_of_which_its_marker_alone_is_left_is_not_there(bucket):
    """As after a removal that was killed before its last request."""
    import boto3

    name = bucket.removeprefix("s3://").partition("/")[0]
    boto3.client("s3").put_object(Bucket=name, Key="runs/step-000000007/", Body=b"")
    store = CheckpointStore(bucket)
    assert store.newest() is None
    store.save(checkpoint_at(1))
    assert_same(store.newest(), checkpoint_at(1))


def test_one_that_is_listed_and_never_there_is_looked_for_a_few_times(tmp_path, monkeypatch):
    store, _ = filled(tmp_path, [1])
    (tmp_path / "step-000000002").write_text("no folder")
    looks: list[str] = []
    real = store._load

    def load(name: str) -> Checkpoint:
        looks.append(name)
        return real(name)

    monkeypatch.setattr(store, "_load", load)
    assert_same(store.newest(), checkpoint_at(1))
    assert looks == ["step-000000002"] * 3 + ["step-000000001"]


def test_one_that_cannot_be_read_for_now_is_not_removed(tmp_path, monkeypatch):
    filled(tmp_path, [1, 2, 3], keep=3)
    (tmp_path / "step-000000003" / "state.json").write_text("{")
    real = tensor_folder.verify_folder

    def away(folder: Path) -> None:
        if folder.name == "step-000000002":
            raise OSError(5, "Input/output error", str(folder))
        real(folder)

    with monkeypatch.context() as patch:
        patch.setattr(tensor_folder, "verify_folder", away)
        store = CheckpointStore(str(tmp_path), keep=2, lease_number=1)
        assert_same(store.newest(), checkpoint_at(1))
    store.save(checkpoint_at(1))
    assert open_storage(str(tmp_path)).names() == [
        "step-000000001",
        "step-000000001.000001",
        "step-000000002",  # but not the damaged one
    ]
    assert_same(store.newest(), checkpoint_at(2))


def test_one_that_cannot_be_read_for_now_is_not_taken_for_none(tmp_path, monkeypatch):
    store, _ = filled(tmp_path, [1, 2])

    def away(folder: Path) -> None:
        raise OSError(5, "Input/output error", str(folder))

    with monkeypatch.context() as patch:
        patch.setattr(tensor_folder, "verify_folder", away)
        with pytest.raises(StorageError, match="Input/output error"):
            store.newest()
    assert_same(store.newest(), checkpoint_at(2))


def test_one_that_vanishes_while_it_is_read_is_looked_for_again(tmp_path, monkeypatch):
    """Another process resumes from this one, writes the next one, and removes this one."""
    store, warnings = filled(tmp_path, [1], keep=1)
    real = tensor_folder.read_folder

    def overtaken(folder: Path) -> Any:
        monkeypatch.setattr(checkpoint_store, "read_folder", real)
        CheckpointStore(str(tmp_path), keep=1).save(checkpoint_at(2))
        raise FileNotFoundError(2, "No such file or directory", str(folder))

    monkeypatch.setattr(checkpoint_store, "read_folder", overtaken)
    assert_same(store.newest(), checkpoint_at(2))
    assert warnings == []
