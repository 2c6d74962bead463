"""What makes a result: the fingerprint of a stage covers its numbers, and nothing else."""

from __future__ import annotations

import ast
import re
import shutil
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import pytest

from pipeline.corpus.distributions import listed_versions
from pipeline.execution.recipes import RESOLUTION, stage_fingerprint, trials_digest, write_recipes
from pipeline.identity import fingerprint
from pipeline.project import stages
from pipeline.project.checked_params import checked
from pipeline.project.params import Params
from pipeline.project.project import Project
from pipeline.project.relations import MODULES_OF_RELATIONS
from pipeline.settings.loader import overlay, read_yaml
from tests.test_rooms import modules as every_module

ROOT = Path(__file__).resolve().parent.parent


def forget() -> None:
    """Read the files again."""
    for cached in (fingerprint.imports_of, fingerprint._text, trials_digest):
        cached.cache_clear()


@pytest.fixture
def source(tmp_path, monkeypatch) -> Iterator[Path]:
    """A copy of the code whose fingerprints are taken."""
    for package in ("models", "pipeline"):
        shutil.copytree(ROOT / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(fingerprint, "_ROOT", tmp_path)
    forget()
    yield tmp_path
    forget()


SWITCHED_ON = {
    "tune": {"num_trials": 2}, "ablate": {"seeds": [1]}, "distil_classifier": {"student": "vectors"},
    "scaling": {"headstart": "ulmfit", "sizes": {"small": {}, "middle": {}, "large": {}}},
}  # fmt: skip
ITEM = {"corpus": "general", "tokenizer": "pieces", "headstart": "ulmfit"}


@pytest.fixture
def params() -> Params:
    """With all stages switched on."""
    return Project.of(overlay(read_yaml(ROOT / "params.yaml"), SWITCHED_ON), where="params.yaml").params


def item_of(stage: str) -> dict[str, str]:
    kind = stages.describe(stage).item
    return {kind: ITEM[kind]} if kind else {}


def digests(params: Params) -> dict[str, str]:
    forget()
    project = Project(params)
    found = {stage: stage_fingerprint(stage, project, item_of(stage)).digest for stage in stages.names()}
    found["trials"] = trials_digest("awd_lstm")
    found["trials without a model"] = trials_digest(None)
    return found | {f"prepare {each}": stage_fingerprint("prepare", Project(params), {"corpus": each}).digest
                    for each in ("general", "target")}  # fmt: skip


def changed_by(source: Path, params: Params, file: str, old: str, new: str) -> set[str]:
    """The stages whose fingerprint an edit changes."""
    before = digests(params)
    path = source / file
    text = path.read_text(encoding="utf-8")
    assert old in text, f"{old!r} is not in {file}"
    path.write_text(text.replace(old, new, 1), encoding="utf-8")
    after = digests(params)
    return {stage for stage in before if before[stage] != after[stage]}


TALKS = """
import logging

log = logging.getLogger(__name__)


def talk(x: int) -> int:
    log.info("{word}")
    if x < 0:
        raise ValueError(f"{word} {{x}}")
    return x
"""


def test_what_people_read_changes_nothing(source, params):
    """Other comments, docstrings, error messages and log calls in numerical code."""
    loop, optim = (source / "pipeline/training" / name for name in ("loop.py", "optim.py"))
    plain = optim.read_text(encoding="utf-8")
    optim.write_text(plain + TALKS.format(word="one"), encoding="utf-8")
    before = digests(params)
    text = loop.read_text(encoding="utf-8")
    text = text.replace("    def train_step", "    # why\n\n    def train_step").replace(
        '"""', '"""Anew: ', 1
    )
    loop.write_text(text, encoding="utf-8")
    optim.write_text(plain + TALKS.format(word="two"), encoding="utf-8")
    assert digests(params) == before
    optim.write_text(plain + TALKS.format(word="two").replace("return x", "return x + 1"), encoding="utf-8")
    assert digests(params) != before


ADDED = [
    ("    def at_end(self) -> bool:\n", '        """Whether the last step is done."""\n'),
    ("        self.model.train()\n", '        log.info("a step")\n'),
    (
        "        self.layout.begin_step(self.optimizer, rates.lrs)\n",
        '        assert self.step >= 0, "a message"\n',
    ),
]


def test_a_docstring_or_log_call_more_changes_nothing_and_a_check_more_does(source, params):
    loop = source / "pipeline/training/loop.py"
    text = loop.read_text(encoding="utf-8")
    before = digests(params)
    with_log = text.replace("import math\n", "import logging\nimport math\n", 1).replace(
        "\n\ndef train(", "\nlog = logging.getLogger(__name__)\n\n\ndef train(", 1
    )
    for (place, added), changes in zip(ADDED, (False, False, True), strict=True):
        assert place in with_log
        loop.write_text(with_log.replace(place, place + added, 1), encoding="utf-8")
        assert (digests(params) != before) == changes, added
    typed = text.replace("lanes: list[Tensor])", "lanes: list[torch.Tensor])")
    assert typed != text
    loop.write_text(typed, encoding="utf-8")
    assert digests(params) == before


def test_a_number_called_log_counts(source, params):
    file = "pipeline/training/schedules.py"
    path = source / file
    text = path.read_text(encoding="utf-8")
    path.write_text(
        text + "\n\ndef grow(x):\n    log = x + 1\n    log.add_(1)\n    return log\n", encoding="utf-8"
    )
    assert "pretrain_lm" in changed_by(source, params, file, "log = x + 1", "log = x + 2")
    assert "pretrain_lm" in changed_by(source, params, file, "log.add_(1)", "log.add_(3)")


REPHRASED = [
    ("pipeline/training/optim.py", r"\bgrouped\b", "known"),  # a local
    ("pipeline/training/optim.py", "no layer group holds", "in no layer group:"),  # a message
    ("pipeline/training/schedules.py", r"\bunfreeze: Unfreezing, ", "unfreeze: str, "),  # an annotation
    ("pipeline/training/schedules.py", r"(?s)(def check_unfreezing.*?\n\n\n)(.*)", r"\2\n\n\1"),  # order
    ("models/mixing.py", "(?m)^import", "# why\nimport"),  # a comment
    (
        "pipeline/corpus/documents.py",
        r"\bfractions\b",
        "shares",
    ),  # locals and parameters of private functions
]


def test_rephrased_code_trains_nothing_again(source, params):
    """Other names of locals, order of functions, annotations and messages."""
    before = digests(params)
    for file, old, new in REPHRASED:
        path = source / file
        text = path.read_text(encoding="utf-8")
        path.write_text(re.sub(old, new, text), encoding="utf-8")
        assert path.read_text(encoding="utf-8") != text, file
        ast.parse(path.read_text(encoding="utf-8"))
    assert digests(params) == before


def test_a_swapped_operand_trains_again(source, params):
    file = "pipeline/training/schedules.py"
    assert "pretrain_lm" in changed_by(source, params, file, "(step - warmup)", "(warmup - step)")


def test_readers_of_sources_make_documents_and_no_later_stage(source, params):
    for file in ("textfiles.py", "pydocs.py", "file_source.py"):
        path = f"pipeline/corpus/{file}"
        changed = (
            changed_by(source, params, path, "\nfrom pathlib", "\nANOTHER = 1\nfrom pathlib")
            if ("\nfrom pathlib" in (source / path).read_text(encoding="utf-8"))
            else changed_by(source, params, path, "\nimport", "\nANOTHER = 1\nimport")
        )
        assert changed == {"prepare", "prepare general", "prepare target"}, file


def test_what_only_classifiers_use_trains_no_language_model_again(source, params):
    for file in ("training/classifier.py", "corpus/classifier_batches.py", "evaluation/tfidf.py"):
        changed = changed_by(source, params, f"pipeline/{file}", "import numpy", "A = 1\nimport numpy")
        assert {"evaluate", "sample_efficiency", "trials"} <= changed, file
        assert not changed & {"pretrain_lm", "finetune_lm"}, file
    first = "import torch\n"
    changed = changed_by(source, params, "pipeline/training/language_model.py", first, f"A = 1\n{first}")
    assert {"pretrain_lm", "finetune_lm", "trials"} <= changed
    assert not changed & {"finetune_classifier", "evaluate"}


def test_a_helper_of_another_family_changes_nothing(source, params):
    before = digests(params)
    (source / "models/convolution.py").write_text("A = 1\n", encoding="utf-8")
    assert digests(params) == before


def test_what_makes_the_trials_changes_their_key_and_what_draws_the_curve_does_not(source, params):
    points = changed_by(
        source, params, "pipeline/stages/_points.py", "seed=point.seed,", "seed=point.seed + 1,"
    )
    assert {"trials", "sample_efficiency", "ablate"} <= points
    assert "tune" not in points  # a search makes its jobs itself
    curve = changed_by(
        source, params, "pipeline/evaluation/label_curve.py", "import numpy", "A = 1\nimport numpy"
    )
    assert "sample_efficiency" in curve
    assert "trials" not in curve


def test_every_package_that_numbers_are_made_with_is_known():
    """As one that computes, whose version counts, or as one that does not."""
    known = fingerprint._COMPUTING.keys() | fingerprint.NOT_COMPUTING | set(sys.stdlib_module_names)
    imported = {
        name: module
        for module in every_module()
        if fingerprint.is_numerical(module)
        for name in fingerprint._foreign_imports(module)
    }
    assert len(imported) > 20
    assert {name: module for name, module in imported.items() if name not in known} == {}


def test_operations_change_nothing(source, params):
    """Leases, launching, checkpoints' publishing, tracking, the command line, the settings' form."""
    before = digests(params)
    first_import = "from __future__ import annotations\n"
    files = (path for path in (source / "pipeline").rglob("*.py") if path.parent.name != "stages")
    modules = {path: _module(path, source) for path in files}
    edited = [
        path
        for path, module in modules.items()
        if not fingerprint.is_numerical(module)
        and module not in (*fingerprint.NUMERICAL_ELSEWHERE, *RESOLUTION)
    ]
    for path in edited:
        text = path.read_text(encoding="utf-8")
        path.write_text(text.replace(first_import, first_import + "\nANOTHER = 1\n"), encoding="utf-8")
    assert {"lease.py", "ray_train.py", "checkpoint_store.py", "runs.py", "__main__.py", "settings.py"} <= {
        path.name for path in edited
    }
    assert digests(params) == before


def _module(path: Path, source: Path) -> str:
    return ".".join(path.relative_to(source).with_suffix("").parts)


def test_a_formula_of_the_schedules_changes_what_trains_and_no_corpus(source, params):
    file = "pipeline/training/schedules.py"
    changed = changed_by(source, params, file, "return (1 + p * (ratio", "return (1.5 + p * (ratio")
    assert changed >= set(stages.of_kind("trains", "sweeps"))
    assert not changed & {*stages.of_kind("prepares"), "prepare general", "prepare target", "report"}


@pytest.mark.parametrize(
    ("file", "old", "new", "stages_changed"),
    [
        ("evaluation/document_classifier.py", "self.temperature == 1", "self.temperature != 1",
         {"evaluate", "distil_classifier"}),
        ("evaluation/text_classifiers.py", "logits.double().softmax(1)", "logits.softmax(1)",
         {"evaluate", "distil_classifier"}),
        ("evaluation/reference_sample.py", "probs.argmax(1)", "probs.argmin(1)",
         {"evaluate", "distil_classifier"}),
        ("inference/reference_sample.py", "validation != UNLABELLED", "validation >= 1",
         {"distil_classifier"}),
    ],
)  # fmt: skip
def test_how_a_classifier_is_applied_changes_the_stages_that_apply_it(
    source, params, file, old, new, stages_changed
):
    assert changed_by(source, params, f"pipeline/{file}", old, new) == stages_changed


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        ("evaluation/document_classifier.py", "with a tab between them", "with tabs between them"),
        ("inference/predict.py", "have different labels", "have other labels"),
        ("inference/predict.py", "8192", "4096"),  # texts of a batch
        ("inference/loading.py", "holds no encoder", "has no encoder"),
        ("training/loop.py", "the training loss is", "by now the training loss is"),
    ],
)
def test_how_a_classifier_is_loaded_and_what_it_says_changes_nothing(source, params, file, old, new):
    assert changed_by(source, params, f"pipeline/{file}", old, new) == set()


# The functions of a `settings.py` beside checks: they select or dump values, wait, or serve a message.
NOT_COMPUTING = {"names", "model", "dump", "ranges", "patiently", "keys_of_source"}


def test_settings_only_declare_check_and_hand_on_values():
    """No recipe counts a `settings.py`, so what computes there would change and nothing would run again."""
    functions = [
        node
        for file in ROOT.glob("pipeline/*/settings.py")
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef)
        and not any("validator" in ast.unparse(each) for each in node.decorator_list)
    ]
    assert {node.name for node in functions} == NOT_COMPUTING


def test_which_arms_there_are_changes_the_curve_and_the_candidates(source, params):
    file = "pipeline/project/arms.py"
    changed = changed_by(source, params, file, "trained.issuperset(members)", "trained.isdisjoint(members)")
    assert changed == {"evaluate", "sample_efficiency"}


def test_what_a_student_trains_on_changes_the_distillation_alone(source, params):
    file = "pipeline/project/student.py"
    assert changed_by(source, params, file, '"max_labels": None', '"max_labels": 9') == {"distil_classifier"}


@pytest.mark.parametrize(
    ("file", "before", "after", "stages_that_rerun"),
    [
        ("project/sizes.py", '{"epochs": epochs}', '{"epochs": 2 * epochs}', {"scaling"}),
        ("project/sizes.py", "overlay(settings.pretrain_lm, own.pretrain_lm)",
         "overlay(own.pretrain_lm, settings.pretrain_lm)", {"scaling"}),
        ("distributed/sampling.py", "100 * metrics", "50 * metrics", {"tune"}),
        ("distributed/sampling.py", "percent > 0", "percent > 1", {"tune"}),
    ],
)  # fmt: skip
def test_a_formula_of_a_sweep_reruns_it_alone(source, params, file, before, after, stages_that_rerun):
    assert changed_by(source, params, f"pipeline/{file}", before, after) == stages_that_rerun


def test_how_costs_are_added_changes_every_stage_that_reports_them(source, params):
    changed = changed_by(
        source, params, "pipeline/figures/cost.py", "self.seconds + other", "self.seconds - other"
    )
    assert {"evaluate", "sample_efficiency", "scaling"} <= changed


def test_every_trial_is_made_where_its_key_counts_the_code():
    """A trial made elsewhere would keep its outcome after an edit there."""
    making = {
        module
        for module in every_module()
        if module.startswith("pipeline.stages.")
        and re.search(r"\bSpec\(", fingerprint.source_of(module).read_text("utf-8"))
    }
    counted = fingerprint.fingerprint_of("pipeline.stages._points").modules
    # `distil_classifier` has its own digest in the settings of its trial.
    assert making - counted.keys() == {"pipeline.stages.distil_classifier"}


def test_which_columns_are_texts_changes_the_documents_alone(source, params):
    file = "pipeline/corpus/text_columns.py"
    changed = changed_by(source, params, file, "return texts + [", "return texts[::-1] + [")
    assert changed == {"prepare", "prepare general", "prepare target"}


def test_how_settings_are_layered_changes_what_reads_them(source, params):
    file = "pipeline/project/headstarts.py"
    changed = changed_by(
        source, params, file, "[shared(stage), brought(stage), own(stage)]", "[shared(stage), own(stage)]"
    )
    assert changed >= {*stages.of_kind("trains", "sweeps"), "read_features"}
    assert not changed & {*stages.of_kind("prepares"), "prepare general", "prepare target", "report"}


@pytest.mark.parametrize(
    ("before", "after"), [("n_startup_trials=5", "n_startup_trials=50"), ("(seed=0)", "(seed=7)")]
)
def test_how_a_search_samples_changes_the_search_alone(source, params, before, after):
    file = "pipeline/distributed/sampling.py"
    digest = fingerprint.fingerprint_of("pipeline.distributed.sampling").digest  # in the key of its folder
    assert changed_by(source, params, file, before, after) == {"tune"}
    assert fingerprint.fingerprint_of("pipeline.distributed.sampling").digest != digest


def test_the_normalisation_changes_the_documents(source, params):
    file = "pipeline/corpus/normalise.py"
    first_import = "from __future__ import annotations\n"
    changed = changed_by(source, params, file, first_import, first_import + "\nANOTHER = 1\n")
    prepares = {"prepare", "prepare general", "prepare target"}
    reads_texts = {"evaluate", "distil_classifier", "sample_efficiency", "ablate", "scaling"}
    assert changed == prepares | reads_texts | {"trials", "trials without a model"}


def test_another_family_counts_only_where_it_is_used(source, params):
    described = 'from models.family import Family\n\nFAMILY = Family(name="other", objective="causal")\n'
    (source / "models/other.py").write_text(described)
    forget()
    plain = fingerprint.fingerprint_of("pipeline.stages.pretrain_lm", families=["awd_lstm"], trains=True)
    other = fingerprint.fingerprint_of("pipeline.stages.pretrain_lm", families=["other"], trains=True)
    assert "models.other" in other.modules
    assert "models.other" not in plain.modules
    assert "models.awd_lstm" in plain.modules


def test_a_head_start_counts_its_own_family_and_objective_and_a_sweep_those_of_all_it_trains(source, params):
    run = params.run.model_copy(update={"headstarts": ["ulmfit", "bert"]})
    both = Project(params.model_copy(update={"run": run}))
    forget()
    for stage in stages.of_kind("trains"):
        ulmfit, bert = (
            stage_fingerprint(stage, both, {"headstart": name}).modules for name in run.headstarts
        )
        assert {"models.awd_lstm", "pipeline.objectives.causal"} <= ulmfit.keys() - bert.keys()
        assert {"models.bert", "pipeline.objectives.masked"} <= bert.keys() - ulmfit.keys()
        assert ulmfit == stage_fingerprint(stage, Project(params), {"headstart": "ulmfit"}).modules
    for stage in ("sample_efficiency", "evaluate"):
        found = stage_fingerprint(stage, both).modules.keys()
        assert {"models.awd_lstm", "models.bert", "pipeline.objectives.masked"} <= found, stage
    for stage in ("tune", "ablate", "scaling"):  # of ulmfit alone
        assert "models.bert" not in stage_fingerprint(stage, both).modules, stage
    assert trials_digest("awd_lstm") != trials_digest("bert")
    before = trials_digest("awd_lstm")
    with (source / "pipeline/objectives/masked.py").open("a", encoding="utf-8") as file:
        file.write("\n\nANOTHER = 2\n")
    forget()
    assert trials_digest("awd_lstm") == before


def test_what_writes_the_encoder_beside_a_classifier_is_in_its_fingerprint_alone(params):
    stage, writes = "finetune_classifier", "pipeline.stages._frozen_encoder"
    assert writes not in stage_fingerprint(stage, Project(params), {"headstart": "ulmfit"}).modules
    top = {"headstarts": {"ulmfit": {"finetune_classifier": {"beside": "vectors"}}}}
    beside = checked(overlay(params.model_dump(), top), where="params.yaml")
    assert writes in stage_fingerprint(stage, Project(beside), {"headstart": "ulmfit"}).modules
    assert writes not in stage_fingerprint(stage, Project(beside), {"headstart": "vectors"}).modules
    assert writes not in stage_fingerprint("finetune_lm", Project(beside), {"headstart": "ulmfit"}).modules


def test_parts_that_only_some_head_starts_need_are_in_no_other_fingerprint(params):
    stages_of_models = ["pipeline.stages.pretrain_lm", "pipeline.stages.finetune_lm"]
    shared = fingerprint.numerical_modules(stages_of_models, MODULES_OF_RELATIONS)
    assert not MODULES_OF_RELATIONS & set(shared)
    for part in MODULES_OF_RELATIONS:
        assert fingerprint.source_of(part).exists()
        assert part in fingerprint.numerical_modules([part], MODULES_OF_RELATIONS)
    # `evaluate` imports it at the top.
    of_evaluate = fingerprint.numerical_modules(["pipeline.stages.evaluate"], MODULES_OF_RELATIONS)
    assert "pipeline.stages._frozen_encoder" in of_evaluate


@pytest.mark.parametrize("family", ["layers", "awd_lsm"])
def test_a_family_that_is_none_is_refused_by_its_key(params, tmp_path, family):
    other = params.headstarts["ulmfit"].model_copy(update={"family": family})
    wrong = params.model_copy(update={"headstarts": {**params.headstarts, "ulmfit": other}})
    with pytest.raises(ValueError, match=rf"headstarts\.ulmfit\.family is '{family}', which is not a model"):
        write_recipes(Project(wrong), tmp_path)


def test_every_training_counts_the_loop_and_what_it_runs():
    wanted = {
        "models.awd_lstm",
        "models.kernels",
        "models.layers",
        "pipeline.corpus.batches",
        "pipeline.corpus.tokens",
        "pipeline.objectives.causal",
        "pipeline.training.context",
        "pipeline.training.jobs",
        "pipeline.training.loop",
        "pipeline.training.task",
        "pipeline.training.optim",
        "pipeline.training.precision",
        "pipeline.training.schedules",
    }
    for stage in stages.of_kind("trains", "sweeps"):
        found = fingerprint.fingerprint_of(f"pipeline.stages.{stage}", families=["awd_lstm"], trains=True)
        assert wanted <= found.modules.keys(), stage


def test_another_version_of_what_computes_changes_what_uses_it(monkeypatch, params):
    def with_version(package: str, version: str) -> set[str]:
        real, before = metadata.version, digests(params)
        with monkeypatch.context() as patch:
            patch.setattr(metadata, "version", lambda name: version if name == package else real(name))
            after = digests(params)
        return {stage for stage in before if before[stage] != after[stage]}

    trains = set(stages.of_kind("trains", "sweeps"))
    by_torch = with_version("torch", "99.0")
    assert trains <= by_torch
    assert not by_torch & {"prepare", "train_tokenizer", "encode", "find_leaks"}
    assert {"train_tokenizer", "encode"} <= with_version("sentencepiece", "99.0")
    assert "prepare" in with_version("polars", "99.0")
    assert with_version("mlflow", "99.0") == set()
    # Only the early stopping of a search is a number of Ray's.
    assert with_version("ray", "99.0") == with_version("optuna", "99.0") == {"tune"}
    # The build for another device is the same package.
    assert with_version("torch", metadata.version("torch").partition("+")[0] + "+cu130") == set()


def test_text_of_listed_packages_counts_where_it_is_the_corpus(params):
    found = stage_fingerprint("prepare", Project(params), {"corpus": "general"})
    assert found.text["torch"] == metadata.version("torch").partition("+")[0]
    assert found.text.keys() == {"python", *listed_versions("general")}
    assert not stage_fingerprint("encode", Project(params)).text


def test_a_file_that_says_the_same_is_left_alone(params, tmp_path):
    written = write_recipes(Project(params), tmp_path)
    items = {"corpus": ["general", "target"], "tokenizer": list(params.tokenizers),
             "headstart": params.run.headstarts}  # fmt: skip
    wanted = {"choose_tokens", "choose_features"}
    for stage, described in stages.STAGES.items():
        wanted |= {f"{stage}-{name}" for name in items[described.item]} if described.item else {stage}
    assert {file.stem for file in written} == wanted
    stamps = {file: file.stat().st_mtime_ns for file in written}
    assert write_recipes(Project(params), tmp_path) == []
    assert {file: file.stat().st_mtime_ns for file in written} == stamps
