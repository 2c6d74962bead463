"""The report's figures: the stages' metrics, curves and tables as they are on disk, and the rows to draw."""

from __future__ import annotations

import csv
import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pipeline.project import stages
from pipeline.report.studies import Study
from pipeline.settings.arm import Arm, Use

Row = Mapping[str, Any]

TRAININGS = stages.of_kind("trains")
FROZEN = ("pretrain_lm", "finetune_lm", "read_features")  # the stages behind a probe
CORPORA = ("general", "target")
TFIDF = "TF-IDF + logistic regression"
_USES = {
    Use.SCRATCH: "from scratch",
    Use.PROBE: "frozen features",
    Use.WITH_TFIDF: "frozen features and TF-IDF",
    Use.PROBE_CHOSEN: "frozen features, labels chosen",
    Use.WITH_TFIDF_CHOSEN: "frozen features and TF-IDF, labels chosen",
    Use.GENERAL_LM: "general language model only",
    Use.TARGET_LM_ALONE: "target language model only",
    Use.IN_CONTEXT: "asked, not trained",
}


def name_of(arm: str) -> str:
    """An arm of the label curve, as the report names it."""
    parsed = Arm.parse(arm)
    if parsed.source is None:
        return TFIDF if parsed.use is Use.TFIDF else str(parsed)
    return f"{parsed.source} ({_USES[parsed.use]})" if parsed.use in _USES else parsed.source


@dataclass(frozen=True)
class Figures:
    """Metrics by file name. Those of sweeps are there only if they ran any trials."""

    tokenizers: Mapping[str, str]  # of each head start that was trained
    metrics: Mapping[str, Mapping[str, Any]]
    curves: Mapping[str, Sequence[Row]]  # of each training, by stage and head start
    confusion: Sequence[Row]  # actual, predicted
    calibration: Sequence[Row]
    errors: Sequence[Mapping[str, Any]]
    studies: Mapping[str, Study] = field(default_factory=dict)  # of commands beside the route
    corpora: Sequence[str] = CORPORA
    # The weights of attention pooling, for each head start that pools by it.
    attention: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    risk: Sequence[Row] = ()  # classifier, coverage, error

    def __getitem__(self, name: str) -> Mapping[str, Any]:
        return self.metrics[name]

    @property
    def has_labels(self) -> bool:
        """Whether classifiers were trained; else only the language models and corpora have figures."""
        return "without_labels" not in self.metrics["evaluate"]

    @property
    def head_starts(self) -> list[str]:
        return list(self.tokenizers)

    def get(self, name: str) -> Mapping[str, Any] | None:
        return self.metrics.get(name)

    def studies_of(self, kind: str) -> list[Study]:
        """The studies of a kind whose model is one of those that are reported on, not an earlier one."""
        keys = {
            self.metrics[f"{stage}-{name}"].get("key") for stage in TRAININGS for name in self.head_starts
        }
        mine = (study for name, study in self.studies.items() if name.startswith(f"{kind}-"))
        return [study for study in mine if study["key"] in keys]


def read(
    metrics: Path,
    curves: Path,
    evaluation: Path,
    tokenizers: Mapping[str, str],
    studies: Mapping[str, Study],
    corpora: Sequence[str] = CORPORA,
) -> Figures:
    """`tokenizers`: of each head start. Raises ValueError if a file is missing or damaged."""
    trainings = [f"{stage}-{name}" for stage in TRAININGS for name in tokenizers]
    encoded = {f"encode-{corpus}-{each}": None for each in tokenizers.values() for corpus in CORPORA}
    features = [f"read_features-{name}" for name in tokenizers]
    needed = [*(f"prepare-{corpus}" for corpus in corpora), *encoded, *trainings, *features]
    needed += ["find_leaks", "evaluate", "sample_efficiency"]
    found = {name: _json(metrics / f"{name}.json") for name in needed}
    has_labels = "without_labels" not in found["evaluate"]
    for name in ("tune", "ablate", "scaling", "distil_classifier"):
        file = metrics / f"{name}.json"
        if file.exists() and (figures := _json(file)).get("num_trials") != 0:
            found[name] = figures
    return Figures(
        tokenizers=dict(tokenizers),
        metrics=found,
        curves={name: _csv(curves / f"{name}.csv") for name in trainings},
        confusion=_csv(evaluation / "confusion.csv") if has_labels else [],
        calibration=_csv(evaluation / "calibration.csv") if has_labels else [],
        risk=_csv(evaluation / "risk_coverage.csv") if has_labels else [],
        errors=_json(evaluation / "errors.json") if has_labels else [],
        attention=_json(evaluation / "attention.json") if has_labels else {},
        studies=studies,
        corpora=corpora,
    )


def _json(file: Path) -> Any:
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ValueError(f"{file}: no such file; run `dvc repro` first") from error
    except ValueError as error:
        raise ValueError(f"{file} is not valid JSON: {error}; rerun the stage that wrote it") from error


def _csv(file: Path) -> list[Row]:
    try:
        with file.open(newline="", encoding="utf-8") as lines:
            return [{name: _value(text) for name, text in row.items()} for row in csv.DictReader(lines)]
    except FileNotFoundError as error:
        raise ValueError(f"{file}: no such file; run `dvc repro` first") from error


def _value(text: str) -> float | str | None:
    if text == "":
        return None
    try:
        number = float(text)
    except ValueError:
        return text
    return number if math.isfinite(number) else None


# ------------------------------------------------------------------------------------- rows to draw


def label_curve(figures: Figures) -> list[Row]:
    """Error and interval, by arm and number of labels; None if all seeds failed."""
    metrics, curve = figures["sample_efficiency"], by_arm(figures, "curve")
    failed = dict.fromkeys(("error", "error_low", "error_high", "std_over_seeds")) | {"num_seeds": 0}
    wrong = went_wrong(figures)
    return [
        {
            "arm": name_of(arm),
            "labels": count,
            **curve.get(arm, {}).get(count, failed),
            "went_wrong": (arm, count) in wrong,
        }
        for arm in metrics["arms"]
        for count in metrics["labels"]
    ]


def risk_coverage(figures: Figures) -> list[Row]:
    """Error by the share of test documents that is labelled, of what ships and of TF-IDF."""
    return [{**row, "classifier": name_of(str(row["classifier"]))} for row in figures.risk]


def in_context(figures: Figures) -> list[Row]:
    """The same of arms that train nothing, by the number of labelled examples that they are shown."""
    return [
        {"arm": name_of(arm), "labels": int(count), **point, "went_wrong": False}
        for arm, by_count in _asked(figures, "curve").items()
        for count, point in sorted(by_count.items(), key=lambda each: int(each[0]))
    ]


def labels_to_match(figures: Figures, name: str, count: int) -> dict[str, Mapping[str, float]]:
    """How many labels each trained arm needs for the error of one that trains nothing, by arm.

    `name`: of that arm, as `name_of` has it.
    """
    return {
        arm: needed[str(count)]
        for arm, row in _asked(figures, "labels_needed").items()
        for other, needed in row.items()
        if name_of(other) == name and str(count) in needed
    }


def examples_left_out(figures: Figures) -> dict[str, dict[str, str]]:
    """Why an arm could not be shown a number of examples, by arm and number."""
    return _asked(figures, "left_out")


def _asked(figures: Figures, name: str) -> dict[str, Any]:
    found: dict[str, Any] = figures["sample_efficiency"].get("in_context", {}).get(name, {})
    return found


def went_wrong(figures: Figures) -> set[tuple[str, int]]:
    """Arms and numbers of labels that are clearly worse than the arm is with fewer labels."""
    found = figures["sample_efficiency"].get("worse_than_fewer", {})
    return {(arm, int(count)) for arm, worse in found.items() for count in worse}


def prices(figures: Figures) -> list[Row]:
    """Error against price, by arm and number of labels: core minutes of the head start and of the training.

    `cheapest` marks the frontier: no cheaper point has so low an error.
    """
    metrics = figures["sample_efficiency"]
    rows: list[dict[str, Any]] = []
    for arm, by_count in by_arm(figures, "curve").items():
        before = _core_seconds_before(figures, arm)
        spent = metrics["core_seconds"][arm]
        if before is None:
            continue
        rows += [
            {
                "arm": name_of(arm),
                "labels": count,
                "error": point["error"],
                "core_minutes": (before + spent[str(count)]) / 60,
            }
            for count, point in by_count.items()
            if str(count) in spent
        ]
    lowest = math.inf
    for row in sorted(rows, key=lambda row: (row["core_minutes"], row["error"])):
        row["cheapest"] = row["error"] < lowest
        lowest = min(lowest, row["error"])
    return [*rows]


def _core_seconds_before(figures: Figures, arm: str) -> float | None:
    """Core time of the language models and features that an arm starts from; None if it was not recorded."""
    stages_of = {
        Use.NETWORK: ("pretrain_lm", "finetune_lm"),
        Use.GENERAL_LM: ("pretrain_lm",),
        **{use: FROZEN for use in Use if use.is_frozen},
    }
    needed, metrics = stages_of.get(Arm.parse(arm).use, ()), figures["sample_efficiency"]
    trainings = with_teachers(figures, metrics["head_starts"][arm], needed)
    trainings += with_teachers(figures, beside_arm(figures, arm), FROZEN)
    return _recorded(figures, dict.fromkeys(trainings))


def beside_arm(figures: Figures, arm: str) -> list[str]:
    """The head starts whose features an arm's networks read beside their own."""
    found: list[str] = figures["sample_efficiency"].get("beside", {}).get(arm, [])
    return found


def with_teachers(figures: Figures, names: Iterable[str], needed: Iterable[str]) -> list[str]:
    """These stages of these head starts, and those that they needed of others, each once.

    A language model needed that of its teacher, a classifier the features beside its own.
    """
    found: dict[str, None] = {}
    for stage in needed:
        for name in names:
            found[f"{stage}-{name}"] = None
            teacher = figures[f"pretrain_lm-{name}"].get("teacher", {}).get("headstart")
            if teacher is not None and stage in ("pretrain_lm", "finetune_lm"):
                found[f"{stage}-{teacher}"] = None
            if stage == "finetune_classifier" and (other := beside(figures, name)):
                found |= dict.fromkeys(with_teachers(figures, [other], FROZEN))
    return list(found)


def beside(figures: Figures, name: str) -> str | None:
    """The head start whose features a head start's classifier reads beside its own."""
    return (figures.get(f"finetune_classifier-{name}") or {}).get("beside")


def core_seconds_of(figures: Figures, names: Sequence[str], needed: Sequence[str]) -> float | None:
    """Core time of these stages of these head starts, and of their teachers' language models.

    None if it was not recorded.
    """
    return _recorded(figures, with_teachers(figures, names, needed))


def _recorded(figures: Figures, names: Iterable[str]) -> float | None:
    trainings = [figures[each] for each in names]
    if not all("core_seconds" in training for training in trainings):
        return None
    return float(sum(training["core_seconds"] for training in trainings))


def by_arm(figures: Figures, name: str, of: str | None = None) -> dict[str, dict[int, Any]]:
    """A table of the label curve, arms in the order of the settings and numbers of labels ascending.

    `of`: the arm that a table of pairs is read for.
    """
    metrics = figures["sample_efficiency"]
    table = metrics[name] if of is None else metrics[name].get(of, {})
    return {
        arm: {int(count): table[arm][count] for count in sorted(table[arm], key=int)}
        for arm in metrics["arms"]
        if arm in table
    }


def above_base(figures: Figures) -> dict[str, dict[int, Any]]:
    """By how much each other arm's error is above that of the first arm, paired."""
    return by_arm(figures, "above", of=figures["sample_efficiency"]["base"])


def language_model_curves(figures: Figures) -> dict[str, list[Row]]:
    """A measure's title -> its values by optimizer step, of the head starts that are judged by it.

    Bits per byte are known of the training batches, too.
    """
    charts: dict[str, list[Row]] = {}
    for name, tokenizer in figures.tokenizers.items():
        for stage, corpus in (("pretrain_lm", "general"), ("finetune_lm", "target")):
            measure = next(iter(figures[f"{stage}-{name}"]["measures"]), None)
            if measure is None:  # a text that its objective cannot be judged on
                continue
            rows = charts.setdefault(measure["title"], [])
            bytes_per_token = figures[f"encode-{corpus}-{tokenizer}"]["vocabulary"]["bytes_per_token"]
            scale = {"bits_per_byte": 1 / math.log(2) / bytes_per_token, "loss": 1.0}.get(measure["name"])
            for row in figures.curves[f"{stage}-{name}"]:
                where = {"stage": f"{name}, {stage}", "step": row["step"]}
                if row.get("train_loss") is not None and scale is not None:
                    rows.append(where | {"text": "training", "value": row["train_loss"] * scale})
                value = row.get(f"validation_{measure['name']}")
                if value is not None:
                    rows.append(where | {"text": "validation", "value": value})
    return charts


def rates(figures: Figures, stage: str, head_start: str) -> list[Row]:
    """Learning rate of each layer group by step, as used."""
    return [
        {"step": row["step"], "group": f"group {name.removeprefix('lr_group_')}", "rate": value}
        for row in figures.curves[f"{stage}-{head_start}"]
        for name, value in row.items()
        if name.startswith("lr_group_") and value is not None
    ]


def confusion_counts(figures: Figures) -> list[Row]:
    """Number of documents by actual and predicted label, and its share of the actual label."""
    counts = Counter((str(row["actual"]), str(row["predicted"])) for row in figures.confusion)
    totals = Counter(str(row["actual"]) for row in figures.confusion)
    return [
        {
            "actual": actual,
            "predicted": predicted,
            "documents": counts[actual, predicted],
            "share": counts[actual, predicted] / totals[actual],
        }
        for actual in sorted(totals)
        for predicted in sorted({predicted for _, predicted in counts} | set(totals))
    ]


def trials(figures: Figures) -> list[Row]:
    """The search's trials that have an outcome, each setting a column."""
    return [
        {**trial["settings"], **{name: trial[name] for name in ("trial", "value", "state")}}
        for trial in figures["tune"]["trials"]
        if trial["value"] is not None
    ]


def by_importance(figures: Figures) -> list[str]:
    """The settings that the search tried, the most important first."""
    metrics = figures["tune"]
    return sorted(metrics["best"]["settings"], key=lambda key: -metrics["importance"].get(key, 0.0))


def alignment(pair: Mapping[str, Any]) -> list[Row]:
    """How much of each token's context came from each token of the source, a row each.

    Tokens are numbered, as a text may have one twice.
    """
    return [
        {
            "source": f"{place} {source.strip() or '␣'}",
            "translation": f"{number} {token.strip() or '␣'}",
            "weight": weight,
        }
        for number, (token, weights) in enumerate(zip(pair["translation"], pair["weights"], strict=True))
        for place, (source, weight) in enumerate(zip(pair["source"], weights, strict=True))
    ]


def anatomy(study: Study) -> list[Row]:
    """The measures of `headstart anatomy`, a row each and layer: value, and two standard errors around it."""
    rows: list[Row] = []
    for layer in study["layers"]:
        cosine, share = layer["cosine_baseline"], layer["explained_baseline"]
        for measure, value, error in (
            ("cosine of random words", cosine, 0.0),
            (
                "of a word in two contexts, above that",
                layer["self_similarity"] - cosine,
                layer["self_similarity_error"],
            ),
            (
                "of a word and its sentence, above that",
                layer["sentence_similarity"] - cosine,
                layer["sentence_similarity_error"],
            ),
            (
                "explained by one direction, above chance",
                layer["explained"] - share,
                layer["explained_error"],
            ),
        ):
            rows.append(
                {
                    "layer": layer["layer"],
                    "measure": measure,
                    "value": value,
                    "low": value - 2 * error,
                    "high": value + 2 * error,
                }
            )
    return rows
