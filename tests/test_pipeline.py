"""The files that ship: settings, presets, dvc.yaml, what imports what, and the command line."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pipeline import identity, presets
from pipeline.params import Params, Range, load, overlay, read_yaml, typed
from pipeline.running import project_root
from pipeline.training.export import family_and_config

ROOT = Path(__file__).resolve().parent.parent
STAGES = sorted(path.stem for path in (ROOT / "pipeline/stages").glob("*.py") if path.stem[0] != "_")
DVC = read_yaml(ROOT / "dvc.yaml")["stages"] | read_yaml(ROOT / "ablate/dvc.yaml")["stages"]
PARAMS = read_yaml(ROOT / "params.yaml")


def run_headstart(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": str(ROOT), "NO_COLOR": "1", "COLUMNS": "200"}
    command = [sys.executable, "-m", "pipeline", *arguments]
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=60)


# ----------------------------------------------------------------------------------------- settings


def test_params_yaml_loads():
    params = load(ROOT / "params.yaml")
    assert params.model_dump()["model"] == PARAMS["model"]
    _, config = family_and_config(params.model)
    assert config.embedding_dim == PARAMS["model"]["config"]["embedding_dim"]


@pytest.mark.parametrize("preset", sorted((ROOT / "presets").glob("*.yaml")), ids=lambda path: path.stem)
def test_a_preset_laid_over_params_yaml_loads_and_changes_something(preset):
    top = read_yaml(preset)
    values = overlay(PARAMS, top)
    params = typed(Params, values, where=preset.name)
    family_and_config(params.model)
    assert values != PARAMS


def changed(path: str, value: Any = None, *, delete: bool = False) -> dict[str, Any]:
    values: dict[str, Any] = json.loads(json.dumps(PARAMS))
    *parents, last = path.split(".")
    section = values
    for part in parents:
        section = section[part]
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
        (changed("run.zzzzzz", 1), "unknown key `run.zzzzzz`; known here: checkpoint_minutes, deterministic"),
        (changed("run.seed", delete=True), "missing key `run.seed`"),
        (changed("evaluate", delete=True), "missing key `evaluate`"),
        (changed("pretrain_lm.schedule.ratio", delete=True), "missing key `pretrain_lm.schedule.ratio`"),
        (changed("run.seed", "42"), "`run.seed` is '42'"),
        (changed("run.seed", 1.5), "`run.seed` is 1.5"),
        (changed("pretrain_lm.optimizer.weight_decay", True), "`pretrain_lm.optimizer.weight_decay` is True"),
        (changed("pretrain_lm.optimizer.lr", 0), "`pretrain_lm.optimizer.lr` is 0"),
        (changed("finetune_classifier.unfreeze", "slow"), "`finetune_classifier.unfreeze` is 'slow'"),
        (changed("run.directions", []), "`run.directions` is []"),
        (changed("run.directions", ["forward", "forward"]), "names one twice"),
    ],
)
def test_a_wrong_setting_is_named(values, message):
    with pytest.raises(ValueError, match=re.escape(message)) as refused:
        typed(Params, values, where="params.yaml")
    assert all(line.startswith("params.yaml: ") for line in str(refused.value).splitlines())


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
        (changed("corpus.general.source", {}), "missing key `corpus.general.source.kind`"),
        (changed("leakage", 1), "`leakage` is 1: Input should be a mapping of action, ngram_words,"),
    ],
)
def test_of_a_setting_of_several_kinds_the_key_and_all_kinds_are_named(values, message):
    with pytest.raises(ValueError, match=rf"^params.yaml: {re.escape(message)}[^\n]*$"):
        typed(Params, values, where="params.yaml")


def test_all_wrong_settings_are_named_at_once():
    values = changed("run.sede", 1)
    del values["evaluate"]
    with pytest.raises(ValueError, match="missing key `evaluate`") as refused:
        typed(Params, values, where="params.yaml")
    assert "unknown key `run.sede`" in str(refused.value)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            changed("model.config.hiden_dim", 3),
            "unknown key `model.config.hiden_dim`; did you mean `hidden_dim`",
        ),
        (changed("model.config.hidden_dim", delete=True), "missing key `model.config.hidden_dim`"),
        (changed("model.config.hidden_dim", "8"), "`model.config.hidden_dim` is '8'"),
        (changed("model.config.hidden_dim", 0), "model.config.hidden_dim is 0"),
        (changed("model.family", "awd_lsm"), "did you mean `awd_lstm`"),
    ],
)
def test_a_wrong_setting_of_the_family_is_named(values, message):
    params = typed(Params, values, where="params.yaml")
    with pytest.raises(ValueError, match=re.escape(message)):
        family_and_config(params.model)


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
    assert read_yaml(file) == overlay(PARAMS, read_yaml(top))
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
        assert (file.read_text() == before) == bool(flags)
    assert load(file).corpus.target.source.kind == "files"


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("imbd", None, "did you mean imdb?"),
        ("absent.yaml", None, "absent.yaml: no such file"),
        ("bad.yaml", "run: {sede: 1}", "unknown key `run.sede`"),
        ("bad.yaml", "run: [", "not valid YAML"),
        ("bad.yaml", "- run", "a mapping is wanted"),
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


def sections_of(stage: str) -> tuple[str, ...]:
    for node in tree_of(ROOT / f"pipeline/stages/{stage}.py").body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "SECTIONS":
            sections: tuple[str, ...] = ast.literal_eval(node.value)
            return sections
    raise AssertionError(f"pipeline/stages/{stage}.py has no SECTIONS")


def code_of(stage: str) -> list[str]:
    """Files whose content can change what a stage makes, relative to the project."""
    modules = [f"pipeline.stages.{stage}"]
    files = identity.code_files(*modules)
    if ROOT / "models/family.py" in files:
        files = identity.code_files(*modules, f"models.{PARAMS['model']['family']}")
    return [file.relative_to(ROOT).as_posix() for file in files if file.name != "__init__.py"]


def test_where_a_run_takes_place_does_not_make_it_another():
    may_differ = {"run.seed", "run.precision", "run.directions"}
    assert {path for stage in STAGES for path in sections_of(stage) if path.startswith("run")} == may_differ


def test_dvc_knows_every_stage():
    assert sorted(DVC) == STAGES


@pytest.mark.parametrize("stage", STAGES)
def test_a_stage_depends_on_all_code_that_it_imports(stage):
    family = PARAMS["model"]["family"]
    deps = [dep.replace("${model.family}", family) for dep in DVC[stage]["deps"]]
    for dep in deps:
        if dep.split("/")[0] in ("pipeline", "models"):
            assert (ROOT / dep).exists(), dep
    code = code_of(stage)
    assert f"pipeline/stages/{stage}.py" in code
    uncovered = [file for file in code if not any(file == dep or file.startswith(dep + "/") for dep in deps)]
    assert uncovered == []


@pytest.mark.parametrize("stage", STAGES)
def test_the_params_of_dvc_are_the_sections_of_the_stage(stage):
    wanted = [re.sub(r"\{(\w+)\}", r"${item.\1}", section) for section in sections_of(stage)]
    assert sorted(DVC[stage]["params"]) == sorted(wanted)


@pytest.mark.parametrize("stage", STAGES)
def test_a_stage_reads_no_setting_beyond_its_sections(stage):
    """But `run`, handed on whole: only its seed and precision may change a result, so they must be listed."""
    sections = sections_of(stage)
    chains = set(settings_read(tree_of(ROOT / f"pipeline/stages/{stage}.py")))
    assert chains
    for chain in chains:
        if chain == "run":
            assert {"run.seed", "run.precision"} <= set(sections)
        else:
            assert any(chain == each or chain.startswith(each + ".") for each in sections), chain


def settings_read(tree: ast.AST) -> Iterator[str]:
    """Dotted paths read of `params`, each as long as it goes; `getattr(params.x, y)` as `x.{y}`."""
    inner = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "getattr":
            owner, name = node.args[:2]
            inner.add(id(owner))
            if ast.unparse(owner).startswith("params."):
                yield f"{ast.unparse(owner).removeprefix('params.')}.{{{ast.unparse(name)}}}"
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and id(node) not in inner:
            chain = ast.unparse(node)
            if re.fullmatch(r"params(\.\w+)+", chain) and chain != "params.model_dump":
                yield chain.removeprefix("params.")


@pytest.mark.parametrize("stage", STAGES)
def test_the_command_of_dvc_has_the_flags_of_the_stage(stage):
    run = next(
        node
        for node in tree_of(ROOT / f"pipeline/stages/{stage}.py").body
        if isinstance(node, ast.FunctionDef) and node.name == "run"
    )
    wanted = {arg.arg for arg in run.args.kwonlyargs} | {"metrics"}
    if "session" in wanted:
        wanted = wanted - {"session"} | {"curve"}
    wanted -= {"sweep", "provenance"}
    command = DVC[stage]["cmd"].split()
    assert command[:2] == ["headstart", stage]
    assert {flag.removeprefix("--").replace("-", "_") for flag in command if flag.startswith("--")} == wanted


# ------------------------------------------------------------------------------------- who imports whom


def modules() -> list[str]:
    files = [*(ROOT / "pipeline").rglob("*.py"), *(ROOT / "models").rglob("*.py")]
    parts = [file.relative_to(ROOT).with_suffix("").parts for file in files]
    return sorted(".".join(part[:-1] if part[-1] == "__init__" else part) for part in parts)


def area(module: str) -> str:
    """`pipeline.corpus.tokens` -> `corpus`, `models.heads` -> `models`, `pipeline.launch` -> `launch`"""
    parts = module.split(".")
    return parts[0] if parts[0] == "models" or len(parts) == 1 else parts[1]


# DESIGN.md: `files` is of the standard library alone, and anybody's.
MAY_IMPORT = {
    "models": set[str](),
    "files": set[str](),
    "redaction": set[str](),
    "identity": {"files"},
    "storage": {"files"},
    "births": set(),
    "lease": {"storage", "births"},
    "inputs": {"files", "identity", "storage"},
    "params": set[str](),
    "tracking": {"redaction", "births"},
    "corpus": {"params", "files"},
    "cost": set[str](),
    "training": {"params", "files", "storage", "corpus", "models", "cost"},
    "cluster": {"files"},
    "allocator": set(),
    "precision": {"files"},
    "launch": {
        "params",
        "files",
        "storage",
        "lease",
        "inputs",
        "training",
        "cluster",
        "allocator",
        "precision",
        "redaction",
    },
    "trials": {"params", "lease", "inputs", "training", "cluster", "launch"},
    "label_curve": set[str](),
}


@pytest.mark.parametrize("name", sorted(MAY_IMPORT))
def test_imports_go_one_way(name):
    own = [module for module in modules() if area(module) == name]
    assert own
    for module in own:
        imported = {area(other) for other in identity.imports_of(module)} - {name, "pipeline"}
        assert imported <= MAY_IMPORT[name], module


def test_nothing_imports_a_stage():
    for module in modules():
        stages = {other for other in identity.imports_of(module) if other.startswith("pipeline.stages.")}
        shared = {other for other in stages if other.rsplit(".", 1)[1].startswith("_")}
        assert stages <= (shared if module.startswith("pipeline.stages.") else set()), module


@pytest.mark.parametrize(
    ("package", "allowed"),
    [
        (
            "ray",
            {"pipeline.cluster", "pipeline.doctor", "pipeline.launch", "pipeline.search", "pipeline.trials"},
        ),
        ("mlflow", {"pipeline.tracking", "pipeline.serving"}),
        ("torch", None),
    ],
)
def test_heavy_packages_have_their_place(package, allowed):
    users = {".".join(each.split(".")[:2]) for each in modules() if package in external_imports(each)}
    if allowed is not None:
        assert users == allowed
    else:  # models know torch and nothing else that is not in the standard library
        for module in (each for each in modules() if area(each) == "models"):
            foreign = external_imports(module) - set(sys.stdlib_module_names)
            assert foreign <= {"torch"}, module
        assert "models.kernels" in users


def external_imports(module: str) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(tree_of(identity.source_of(module))):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module.split(".")[0])
    return found - {"pipeline", "models"}


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
        [sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert all(stage in done.stdout for stage in STAGES)


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
    ("model", "message"),
    [("{family: awd-lstm}", "did you mean `awd_lstm`"), ("{config: {hidden_dims: 3}}", "hidden_dims")],
)
def test_an_overlay_with_a_model_that_is_none_is_refused_and_nothing_written(tmp_path, model, message):
    params = tmp_path / "params.yaml"
    params.write_text((ROOT / "params.yaml").read_text())
    mine = tmp_path / "mine.yaml"
    mine.write_text(f"model: {model}\n")
    with pytest.raises(ValueError, match=message):
        presets.use(str(mine), params, write=True)
    assert params.read_text() == (ROOT / "params.yaml").read_text()


def test_report_markdown_prints_the_summary_that_there_is(tmp_path):
    done = run_headstart("report", "--markdown", cwd=tmp_path)
    assert done.returncode == 2
    assert "reports/summary.md: no such file" in done.stderr
    (tmp_path / "reports").mkdir()
    (tmp_path / "reports/summary.md").write_text("# Summary\n", encoding="utf-8")
    assert run_headstart("report", "--markdown", cwd=tmp_path).stdout == "# Summary\n"


def test_an_overlay_takes_a_key_out_of_the_search():
    key = "finetune_classifier.dropout"
    assert key in typed(Params, PARAMS, where="params.yaml").tune.space
    found = typed(Params, overlay(PARAMS, {"tune": {"space": {key: None}}}), where="params.yaml")
    assert key not in found.tune.space
    assert "finetune_classifier.optimizer.lr" in found.tune.space


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
    found = Range(**search).points()
    assert found == (points if "choices" in search else pytest.approx(points))
