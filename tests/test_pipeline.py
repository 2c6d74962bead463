"""The files that ship: settings, presets, dvc.yaml, what imports what, and the command line."""

from __future__ import annotations

import ast
import importlib
import inspect
import json
import os
import re
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from pipeline.distributed.sampling import grid_points
from pipeline.distributed.settings import Range
from pipeline.execution.under_dvc import project_root
from pipeline.project import presets, stages
from pipeline.project.checks import check
from pipeline.project.headstarts import space_of
from pipeline.project.params import Params
from pipeline.project.project import Project
from pipeline.settings.loader import flatten, overlay, read_yaml, typed

ROOT = Path(__file__).resolve().parent.parent
STAGES = stages.names()
DVC = read_yaml(ROOT / "dvc.yaml")["stages"]
PARAMS = read_yaml(ROOT / "params.yaml")


def run_headstart(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": str(ROOT), "NO_COLOR": "1", "COLUMNS": "200"}
    command = [sys.executable, "-m", "pipeline", *arguments]
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=300)


# ----------------------------------------------------------------------------------------- settings


def test_params_yaml_loads():
    params = Project.load(ROOT / "params.yaml").params
    assert params.headstarts.keys() == PARAMS["headstarts"].keys()
    for name, head_start in PARAMS["headstarts"].items():
        config = Project(params).head_starts[name].model.config
        assert config.items() >= head_start.get("config", {}).items()


def test_params_yaml_says_nothing_that_only_repeats_emptiness():
    """It is for a person to read: what is null or empty by default is left out."""
    assert [key for key, value in flatten(PARAMS) if value is None or value == []] == []
    assert "{}" not in (ROOT / "params.yaml").read_text(encoding="utf-8")


@pytest.mark.parametrize("preset", sorted((ROOT / "presets").glob("*.yaml")), ids=lambda path: path.stem)
def test_a_preset_laid_over_params_yaml_loads_and_changes_something(preset):
    top = read_yaml(preset)
    values = overlay(PARAMS, top)
    check(Project.of(values, where=preset.name))
    assert values != PARAMS


def changed(path: str, value: Any = None, *, delete: bool = False) -> dict[str, Any]:
    values: dict[str, Any] = json.loads(json.dumps(PARAMS))
    *parents, last = path.split(".")
    section = values
    for part in parents:
        section = section.setdefault(part, {})
    if delete:
        del section[last]
    else:
        section[last] = value
    return values


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (changed("run.sede", 1), "unknown key `run.sede`; did you mean `seed`?"),
        (changed("finetun_lm", {}), "unknown key `finetun_lm`; did you mean `finetune_lm`?"),
        (
            changed("pretrain_lm.optimizer.momentun", 0.1),
            "unknown key `pretrain_lm.optimizer.momentun`; did you mean `momentum`?",
        ),
        (
            changed("corpus.general.source.min_word", 3),
            "unknown key `corpus.general.source.min_word`; did you mean `min_words`?",
        ),
        (changed("run.zzzzzz", 1), "unknown key `run.zzzzzz`; known here: checkpoint_minutes, compile, "),
        (changed("run.headstarts", delete=True), "missing key `run.headstarts`"),
        (changed("headstarts", delete=True), "missing key `headstarts`"),
        (changed("headstarts.ulmfit.tokenizer", delete=True), "missing key `headstarts.ulmfit.tokenizer`"),
        (changed("run.seed", "42"), "`run.seed` is '42'"),
        (changed("run.seed", 1.5), "`run.seed` is 1.5"),
        (changed("pretrain_lm.optimizer.weight_decay", True), "`pretrain_lm.optimizer.weight_decay` is True"),
        (changed("pretrain_lm.optimizer.lr", 0), "`pretrain_lm.optimizer.lr` is 0"),
        (changed("finetune_classifier.unfreeze", "slow"), "`finetune_classifier.unfreeze` is 'slow'"),
        (
            changed("run.headstarts", []),
            "`run.headstarts` is []: Input should be a list with at least 1 item",
        ),
        (changed("run.headstarts", ["ulmfit", "vectors", "ulmfit"]), "names ulmfit more than once"),
        (changed("ensembles.bidirectional", ["ulmfit", "ulmfit"]), "names ulmfit more than once"),
        (
            changed("ensembles.bidirectional", ["ulmfit"]),
            "`ensembles.bidirectional` is ['ulmfit']: Input should be a list with at least 2 items",
        ),
        (
            changed("finetune_classifier.head_dropout", [0.1, 0.2, 0.3]),
            "`finetune_classifier.head_dropout` is [0.1, 0.2, 0.3]: Input should be a list with at most 2",
        ),
        (changed("sample_efficiency.labels", [400, "all", 400]), "names 400 more than once"),
        (
            changed("sample_efficiency.arms", ["ulmfit/probe", "ulmfit", "ulmfit"]),
            "names ulmfit more than once",
        ),
        (changed("headstarts", {}), "`headstarts` is {}: Input should be a mapping with at least 1 key"),
        (changed("tokenizers", {}), "`tokenizers` is {}"),
    ],
)
def test_a_wrong_setting_is_named(values, message):
    with pytest.raises(ValueError, match=re.escape(message)) as refused:
        typed(Params, values, where="params.yaml")
    assert all(line.startswith("params.yaml: ") for line in str(refused.value).splitlines())


def test_every_key_that_is_no_name_of_a_persons_own_may_be_left_out():
    values = {"run": {"headstarts": ["vectors"]}, "tokenizers": PARAMS["tokenizers"],
              "headstarts": {name: {key: each[key] for key in ("family", "tokenizer")}
                             for name, each in PARAMS["headstarts"].items()}}  # fmt: skip
    project = Project.of(values, where="params.yaml")
    check(project)
    assert project.params.corpus == Project.of(PARAMS, where="params.yaml").params.corpus


def test_a_section_keeps_its_own_defaults_below_a_key_that_is_given():
    """The sections that share a type have different ones."""
    sections = ("pretrain_lm", "finetune_lm", "finetune_classifier")
    values = changed("corpus", {"target": {"max_documents": 5}})
    values |= {section: {"optimizer": {"momentum": 0.5}} for section in sections}
    given, default = typed(Params, values, where="params.yaml"), typed(Params, PARAMS, where="params.yaml")
    for section in sections:
        optimizer = getattr(default, section).optimizer
        assert getattr(given, section).optimizer == optimizer.model_copy(update={"momentum": 0.5})
    assert given.corpus.target == default.corpus.target.model_copy(update={"max_documents": 5})
    assert given.corpus.general == default.corpus.general


WORKERS = "a valid integer or 'auto' or a mapping of min, max"
LR = "finetune_lm.optimizer.lr"


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (changed("run.workers", "many"), f"`run.workers` is 'many': Input should be {WORKERS}"),
        (changed("run.workers", True), f"`run.workers` is True: Input should be {WORKERS}"),
        (
            changed("run.workers", -1),
            f"`run.workers` is -1: Input should be {WORKERS}".replace(
                "a valid integer", "greater than or equal to 0"
            ),
        ),
        (changed("run.workers", {"min": 1}), "missing key `run.workers.max`"),
        (
            changed("run.workers", {"min": 1, "max": 2, "maxi": 3}),
            "unknown key `run.workers.maxi`; did you mean `max`?",
        ),
        (
            changed("run.workers", {"min": 1, "max": "x"}),
            "`run.workers.max` is 'x': Input should be a valid integer",
        ),
        (
            changed("run.workers", {"min": 3, "max": 1}),
            "`run.workers` is {'max': 1, 'min': 3}: min is 3, above max, which is 1",
        ),
        (
            changed("run.threads_per_worker", "all"),
            "`run.threads_per_worker` is 'all': Input should be a valid integer or 'auto'",
        ),
        (
            changed("pretrain_lm.sampled_words", "all"),
            "`pretrain_lm.sampled_words` is 'all': Input should be a valid integer or null",
        ),
        (
            changed("tune.space", {LR: {"low": "a", "high": 1}}),
            f"`tune.space.{LR}.low` is 'a': Input should be a valid number or a valid integer or null",
        ),
        (
            changed("tune.space", {LR: {"choices": [1, [2]]}}),
            f"`tune.space.{LR}.choices.1` is [2]: Input should be a valid number or a valid integer or "
            "a valid string or a valid boolean",
        ),
        (changed("tune.space", {LR: {"lo": 1}}), f"unknown key `tune.space.{LR}.lo`; did you mean `low`?"),
        (
            changed("tune.overrides", {"finetune_ml": {}}),
            "unknown key `tune.overrides.finetune_ml`; did you mean `finetune_lm`?",
        ),
        (
            changed("corpus.general.source", {"kind": "pydoc"}),
            "`corpus.general.source.kind` is 'pydoc': Input should be 'pydocs' or 'files'",
        ),
        (changed("corpus.translation", {"source": {}}), "missing key `corpus.translation.source.kind`"),
        (changed("leakage", 1), "`leakage` is 1: Input should be a mapping of action, ngram_words,"),
    ],
)
def test_of_a_setting_of_several_kinds_the_key_and_all_kinds_are_named(values, message):
    with pytest.raises(ValueError, match=rf"^params.yaml: {re.escape(message)}[^\n]*$"):
        typed(Params, values, where="params.yaml")


def test_all_wrong_settings_are_named_at_once():
    values = changed("run.sede", 1)
    del values["tokenizers"]
    with pytest.raises(ValueError, match="missing key `tokenizers`") as refused:
        typed(Params, values, where="params.yaml")
    assert "unknown key `run.sede`" in str(refused.value)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            changed("headstarts.ulmfit.config.hiden_dim", 3),
            "unknown key `headstarts.ulmfit.config.hiden_dim`; did you mean `hidden_dim`",
        ),
        (changed("headstarts.ulmfit.config.hidden_dim", "8"), "`headstarts.ulmfit.config.hidden_dim` is '8'"),
        (changed("headstarts.ulmfit.config.hidden_dim", 0), "headstarts.ulmfit.config.hidden_dim is 0"),
        (changed("headstarts.ulmfit.family", "awd_lsm"), "did you mean `awd_lstm`"),
    ],
)
def test_a_wrong_setting_of_the_family_is_named(values, message):
    params = typed(Params, values, where="params.yaml")
    with pytest.raises(ValueError, match=re.escape(message)):
        Project(params).head_starts["ulmfit"]


def test_a_family_has_a_default_for_each_setting_of_its_config():
    for family in ("awd_lstm", "word_vectors"):
        empty = {"headstarts": {"ulmfit": {"family": family, "tokenizer": "words", "embedding_from": None}}}
        assert (
            Project(typed(Params, overlay(PARAMS, empty), where="params.yaml"))
            .head_starts["ulmfit"]
            .model.config
        )


def test_an_overlay_of_another_kind_of_source_replaces_it_whole():
    source = overlay({"source": {"kind": "pydocs", "part": "target"}, "a": 1}, {"source": {"kind": "files"}})
    assert source == {"source": {"kind": "files"}, "a": 1}
    assert overlay({"a": {"b": 1, "c": 2}}, {"a": {"c": 3}}) == {"a": {"b": 1, "c": 3}}


def test_use_changes_the_file_and_keeps_its_comments(tmp_path):
    file = tmp_path / "params.yaml"
    file.write_text((ROOT / "params.yaml").read_text())
    top = tmp_path / "mine.yaml"
    top.write_text("run: {seed: 1}\nfinetune_classifier: {epochs: 2.5}\n")
    before = file.read_text()
    wanted = [("run.seed", PARAMS["run"]["seed"], 1),
              ("finetune_classifier.epochs", PARAMS["finetune_classifier"]["epochs"], 2.5)]  # fmt: skip

    assert presets.use(str(top), file, write=False) == wanted
    assert file.read_text() == before
    assert presets.use(str(top), file, write=True) == wanted
    assert read_yaml(file) == overlay(PARAMS, read_yaml(top)) | {"presets": [str(top)]}
    comments = [re.findall(r"#.*", text) for text in (before, file.read_text())]
    assert len(comments[0]) > 10
    assert comments[1] == comments[0]
    assert presets.use(str(top), file, write=True) == []


def test_use_on_the_command_line(tmp_path):
    file = tmp_path / "params.yaml"
    file.write_text((ROOT / "params.yaml").read_text())
    before = file.read_text()
    for flags in (["--dry-run"], []):
        done = run_headstart("use", "imdb", *flags, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert "corpus.target.source.kind: pydocs -> files" in done.stdout
        # As in the file, not as in Python.
        assert 'corpus.target.source.label_names: (none) -> ["negative", "positive"]' in done.stdout
        assert (file.read_text() == before) == bool(flags)
    assert Project.load(file).params.corpus.target.source.kind == "files"


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("imbd", None, "did you mean imdb?"),
        ("absent.yaml", None, "absent.yaml: no such file"),
        ("bad.yaml", "run: {sede: 1}", "unknown key `run.sede`"),
        ("bad.yaml", "run: [", "not valid YAML"),
        ("bad.yaml", "- run", "expected a mapping"),
    ],
)
def test_an_overlay_that_cannot_be_used_leaves_the_file_alone(tmp_path, monkeypatch, name, content, message):
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "params.yaml"
    file.write_text((ROOT / "params.yaml").read_text())
    if content:
        (tmp_path / name).write_text(content)
    with pytest.raises(ValueError, match=re.escape(message)):
        presets.use(name, file, write=True)
    assert file.read_text() == (ROOT / "params.yaml").read_text()


# ----------------------------------------------------------------------------------------- dvc.yaml


def tree_of(file: Path) -> ast.Module:
    return ast.parse(file.read_text(encoding="utf-8"))


def test_dvc_knows_every_stage():
    assert sorted(DVC) == sorted(["recipes", "choose_tokens", "choose_features", *STAGES])


def test_the_stages_are_in_the_order_of_the_route():
    """A stage comes after those whose outputs it reads."""
    route = [stage for stage in DVC if stage != "recipes"]
    assert [stage for stage in route if stage in STAGES] == list(STAGES)
    made: set[str] = set()
    for stage in route:
        deps = {dep for dep in DVC[stage]["deps"] if dep.startswith("data/")}
        assert all(any(_plain(dep).startswith(_plain(out)) for out in made) for dep in deps), stage
        made |= {path for out in DVC[stage]["outs"] for path in out}


def _plain(path: str) -> str:
    return path.partition("/${")[0]


@pytest.mark.parametrize("stage", STAGES)
def test_a_stage_depends_on_its_recipe_and_on_no_setting_or_code(stage):
    (file,) = [dep for dep in DVC[stage]["deps"] if dep.startswith("reports/recipes/")]
    assert f"--recipe {file}" in DVC[stage]["cmd"]
    item = stages.describe(stage).item
    assert Path(file).name == (f"{stage}-${{item.{item}}}.json" if item else f"{stage}.json")
    assert "params" not in DVC[stage]
    code = {dep for dep in DVC[stage]["deps"] if dep.split("/")[0] in ("pipeline", "models")}
    wording = {"pipeline/report", "pipeline/figures", "pipeline/settings/arm.py"}
    assert code == (wording if stage == "report" else set())


def test_the_recipes_alone_watch_the_settings_and_all_of_them():
    assert DVC["recipes"]["params"] == [{"params.yaml": None}]
    assert not [stage for stage in DVC if stage != "recipes" and "params" in DVC[stage]]


def test_every_stage_is_a_file_and_is_described():
    """A new file in pipeline/stages needs its description in pipeline/project/stages.py."""
    files = {file.stem for file in (ROOT / "pipeline/stages").glob("[!_]*.py")}
    assert files == set(STAGES)


# What `run` gets besides its settings and the paths and names that are flags.
HANDED = {"trains": ["session"], "sweeps": ["sweep"], "reports": ["provenance"]}


@pytest.mark.parametrize("stage", STAGES)
def test_a_stage_is_described_with_the_arguments_of_its_run(stage):
    parameters = inspect.signature(importlib.import_module(f"pipeline.stages.{stage}").run).parameters
    by_keyword = {name: each for name, each in parameters.items() if each.kind is each.KEYWORD_ONLY}
    assert parameters.keys() - by_keyword.keys() == {"project"}
    flags, handed = stages.describe(stage).flags, HANDED.get(stages.describe(stage).kind, [])
    assert by_keyword.keys() == {*flags, *handed}
    assert {name: by_keyword[name].annotation for name in flags} == {
        name: kind.__name__ for name, kind in flags.items()
    }


@pytest.mark.parametrize("stage", STAGES)
def test_dvc_writes_the_outputs_of_the_stage_and_not_its_inputs(stage):
    path_of = {flag.removeprefix("--").replace("-", "_"): path
               for flag, path in pairwise(DVC[stage]["cmd"].split())}  # fmt: skip
    written = set[str]()
    for entry in (*DVC[stage]["outs"], *DVC[stage].get("plots", ()), *DVC[stage].get("metrics", ())):
        written |= {entry} if isinstance(entry, str) else entry.keys()
    described = stages.describe(stage)
    assert {path_of[flag] for flag in described.outputs} <= written
    assert not {path_of[flag] for flag in described.inputs} & written


@pytest.mark.parametrize("stage", STAGES)
def test_the_command_of_dvc_has_the_flags_of_the_stage(stage):
    wanted = {*stages.describe(stage).flags, "metrics", "recipe"}
    if stages.describe(stage).kind == "trains":
        wanted.add("curve")
    command = DVC[stage]["cmd"].split()
    assert command[:2] == ["headstart", stage]
    assert {flag.removeprefix("--").replace("-", "_") for flag in command if flag.startswith("--")} == wanted


# ----------------------------------------------------------------------------------------- command line


def test_help_imports_nothing_heavy_and_names_every_stage():
    code = """
import sys
sys.argv = ["headstart", "--help"]
from pipeline.__main__ import main
try:
    main()
except SystemExit as end:
    assert not end.code, end.code
heavy = {"torch", "ray", "mlflow", "polars", "sentencepiece", "sklearn", "dvc"} & set(sys.modules)
assert not heavy, heavy
"""
    environment = os.environ | {"PYTHONPATH": str(ROOT), "NO_COLOR": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert all(stage in done.stdout for stage in STAGES)


def test_help_marks_as_required_only_what_a_bare_call_does_not_fill_in():
    shown = {stage: run_headstart(stage, "--help", cwd=ROOT).stdout for stage in ("evaluate", "encode")}
    assert "required" not in shown["evaluate"]
    assert shown["evaluate"].count("as in dvc.yaml") == len(stages.describe("evaluate").flags) + 1
    assert "required" in shown["encode"]  # dvc.yaml has several


def test_a_stage_takes_all_flags_of_its_own_or_none(tmp_path):
    done = run_headstart("evaluate", "--out", str(tmp_path / "out"), cwd=ROOT)
    assert done.returncode == 2
    assert done.stderr == "headstart: evaluate lacks --tokens; give all of its flags, or none\n"
    (tmp_path / "params.yaml").touch()  # a project without a pipeline
    elsewhere = run_headstart("evaluate", cwd=tmp_path)
    assert elsewhere.returncode == 2
    assert "Missing option '--tokens'" in elsewhere.stderr


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "bad.yaml: no such file"),
        ("run: [", "not valid YAML"),
        ("params", "unknown key `run.sede`; did you mean `seed`?"),
    ],
)
def test_a_stage_with_bad_params_ends_with_one_message_and_code_2(tmp_path, content, message):
    params = tmp_path / "bad.yaml"
    if content == "params":
        params.write_text((ROOT / "params.yaml").read_text().replace("  seed: ", "  sede: "))
    elif content:
        params.write_text(content)
    out, metrics = tmp_path / "out", tmp_path / "metrics.json"
    out.mkdir()
    (out / "kept").write_text("old")
    done = run_headstart(
        "prepare", "--corpus", "general", "--out", str(out), "--metrics", str(metrics),
        "--params", str(params), cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert done.stderr.startswith("headstart: ")
    assert message in done.stderr
    assert (out / "kept").read_text() == "old"
    assert not metrics.exists()


@pytest.mark.parametrize("below", ["", "data/deep"])
def test_what_an_experiment_elsewhere_records_is_kept_in_the_project(tmp_path, below):
    assert project_root(tmp_path / ".dvc/tmp/exps/tmpabc" / below) == tmp_path
    assert project_root(tmp_path / below) == tmp_path / below


@pytest.mark.parametrize(
    ("head_start", "message"),
    [
        ("{family: awd-lstm}", "did you mean `awd_lstm`"),
        ("{config: {hidden_dims: 3}}", "hidden_dims"),
        ("{pretrain_lm: {bppt: 3}}", "headstarts.ulmfit.pretrain_lm.bppt`; did you mean `bptt`"),
        ("{tokenizer: peices}", "did you mean pieces"),
    ],
)
def test_an_overlay_with_a_head_start_that_is_none_is_refused_and_nothing_written(
    tmp_path, head_start, message
):
    params = tmp_path / "params.yaml"
    params.write_text((ROOT / "params.yaml").read_text())
    mine = tmp_path / "mine.yaml"
    mine.write_text(f"headstarts: {{ulmfit: {head_start}}}\n")
    with pytest.raises(ValueError, match=message):
        presets.use(str(mine), params, write=True)
    assert params.read_text() == (ROOT / "params.yaml").read_text()


def test_report_markdown_prints_the_summary_that_there_is(tmp_path):
    (tmp_path / "params.yaml").touch()
    done = run_headstart("report", "--markdown", cwd=tmp_path)
    assert done.returncode == 2
    assert "reports/summary.md: no such file" in done.stderr
    (tmp_path / "reports").mkdir()
    (tmp_path / "reports/summary.md").write_text("# Summary\n", encoding="utf-8")
    assert run_headstart("report", "--markdown", cwd=tmp_path).stdout == "# Summary\n"


def test_an_overlay_takes_a_key_out_of_the_search():
    key = "finetune_classifier.dropout"

    def searched(values: dict[str, Any]) -> dict[str, Range]:
        params = typed(Params, values, where="params.yaml")
        return space_of(params.tune, Project(params).head_starts["ulmfit"])

    assert key in searched(PARAMS)
    found = searched(overlay(PARAMS, {"tune": {"space": {key: None}}}))
    assert key not in found
    assert "finetune_classifier.optimizer.lr" in found


def test_a_range_becomes_choices_by_an_overlay_and_back():
    low_to_high = {"low": 0.1, "high": 0.5, "log": True}
    assert overlay({"key": low_to_high}, {"key": {"choices": [1, 2]}}) == {"key": {"choices": [1, 2]}}
    assert overlay({"key": {"choices": [1, 2]}}, {"key": low_to_high}) == {"key": low_to_high}
    assert overlay({"key": low_to_high}, {"key": {"high": 0.6}})["key"] == low_to_high | {"high": 0.6}


@pytest.mark.parametrize(
    ("search", "message"),
    [
        ({"low": 0.5, "high": 0.5}, "the range from 0.5 to 0.5 is empty"),
        ({"low": 1.0}, "is empty; low must be below high"),
        ({"low": 0.0, "high": 1.0, "log": True}, "begins above 0"),
        ({"choices": []}, "at least one"),
        ({"choices": [1], "low": 0.1, "high": 0.2}, "or low and high"),
    ],
)
def test_a_range_without_values_is_refused(search, message):
    values = changed("tune.space", {"finetune_classifier.dropout": search})
    with pytest.raises(ValueError, match=re.escape(message)) as refused:
        typed(Params, values, where="params.yaml")
    assert "tune.space.finetune_classifier.dropout" in str(refused.value)


@pytest.mark.parametrize(
    ("search", "points"),
    [
        ({"low": 0.0, "high": 1.0}, [0.0, 0.5, 1.0]),
        ({"low": 0.01, "high": 1.0, "log": True}, [0.01, 0.1, 1.0]),
        ({"low": 1, "high": 4, "steps": 4}, [1, 2, 3, 4]),
        ({"low": 1, "high": 2, "steps": 5}, [1, 2]),
        ({"choices": ["a", "b"]}, ["a", "b"]),
    ],
)
def test_points_of_a_grid(search, points):
    found = grid_points(Range(**search))
    assert found == (points if "choices" in search else pytest.approx(points))
