"""params.yaml -> frozen, strict, typed settings.

Every setting lives in `params.yaml` and none has a default here, but for the parts of a `Range`, of which it
takes some. A key that is unknown, missing or of the wrong type is refused with its dotted name. Units are in
the names or in the comment behind a field.
"""

from __future__ import annotations

import difflib
import math
import os
import reprlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    create_model,
    field_validator,
    model_validator,
)

Fraction = Annotated[float, Field(ge=0, lt=1)]
Positive = Annotated[float, Field(gt=0)]
NonNegative = Annotated[float, Field(ge=0)]
Count = Annotated[int, Field(ge=1, lt=2**31)]
CountOrZero = Annotated[int, Field(ge=0, lt=2**31)]
Threads = Annotated[int, Field(ge=1, le=1024)]
Seed = Annotated[int, Field(ge=0, lt=2**32)]  # what every library here takes
Epochs = Annotated[float, Field(gt=0, le=100_000)]  # each is planned ahead
Direction = Literal["forward", "backward"]


_MOST_LEVELS, _MOST_VALUES = 32, 100_000  # of a YAML file
_REPR = reprlib.Repr()  # of what a person wrote, cut to what a message can hold
_REPR.maxstring = _REPR.maxother = 200


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


Precision = Literal["auto", "fp32", "bf16"]  # of matrix products


class Workers(Section):
    """As many as the cluster has room for, while it changes."""

    min: Count
    max: Count

    @model_validator(mode="after")
    def _in_order(self) -> Workers:
        if self.min > self.max:
            raise ValueError(f"min is {self.min}, above max, which is {self.max}")
        return self


class Run(Section):
    """Where and how to run. Only `seed` and `precision` may change a result, but for rounding."""

    seed: Seed
    workers: CountOrZero | Literal["auto"] | Workers  # 0: this process, without Ray
    threads_per_worker: Threads | Literal["auto"]
    device: Literal["auto", "cpu", "cuda"]
    precision: Precision  # auto: bf16 where it was measured to be faster
    deterministic: bool  # only operations that give the same bits each time, slower ones on a GPU
    directions: Annotated[list[Direction], Field(min_length=1)]
    storage: str  # checkpoints of unfinished runs: local folder, NFS or s3://
    storage_wait_minutes: NonNegative  # for which a storage that is away or full is waited for
    checkpoint_minutes: Positive
    keep_checkpoints: Count
    log_steps: Count  # optimizer steps between two records of the training curve
    max_worker_failures: CountOrZero

    @field_validator("storage")
    @classmethod
    def _storage_is_a_place_of_its_own(cls, storage: str) -> str:
        """Not the root of a file system, which holds all else too; `headstart gc` removes files there."""
        scheme, _, rest = storage.rpartition("://")
        if scheme == "s3":
            name = rest.partition("/")[0].rpartition("@")[2].partition("?")[0]
        else:
            name = rest.strip() and os.path.normpath(rest).strip("/")
        if not name:
            raise ValueError("a folder of its own, or s3://bucket/folder, is wanted")
        return storage

    @model_validator(mode="after")
    def _directions_differ(self) -> Run:
        if len(set(self.directions)) != len(self.directions):
            raise ValueError(f"directions names one twice: {self.directions}")
        return self


class PydocsSource(Section):
    """Documentation strings of the installed libraries: real text on every machine."""

    kind: Literal["pydocs"]
    part: Literal["general", "target"]
    min_words: Count  # a shorter document is left out


class FilesSource(Section):
    """Any files that polars scans. Each split is a list of paths, globs or addresses."""

    kind: Literal["files"]
    format: Literal["parquet", "csv", "ndjson", "text", "auto"]  # auto: by each file's ending
    train: Annotated[list[str], Field(min_length=1)]
    validation: list[str]
    test: list[str]
    unlabelled: list[str]
    text_column: str
    label_column: str | None
    label_names: list[str] | None  # names of the integer labels 0, 1, ...; -1 then stands for no label
    encoding_errors: Literal["refuse", "replace", "skip"]  # rows that are not valid UTF-8

    @model_validator(mode="after")
    def _columns_and_names_fit(self) -> FilesSource:
        if self.text_column == self.label_column:
            raise ValueError(f"text_column and label_column are both {self.text_column!r}")
        if self.label_names is not None and self.label_column is None:
            raise ValueError("label_names are given, but label_column is null; set both or none")
        if self.label_names is not None and len(self.label_names) < 2:
            raise ValueError(f"label_names is {self.label_names}; a classifier needs two classes at least")
        return self


class Split(Section):
    """Fractions split off the training rows where the source gives no such split."""

    validation: Fraction
    test: Fraction

    @model_validator(mode="after")
    def _leaves_some(self) -> Split:
        if self.validation + self.test >= 1:
            raise ValueError(
                f"validation {self.validation} and test {self.test} leave nothing to train on; together they "
                "must be below 1"
            )
        return self


class Normalise(Section):
    unicode: Literal["NFC", "NFKC", "none"]
    html_breaks: bool  # `<br />` becomes a space
    control_characters: bool  # C0 and C1 controls become a space
    collapse_whitespace: bool
    lowercase: bool


class Corpus(Section):
    source: Annotated[PydocsSource | FilesSource, Field(discriminator="kind")]
    split: Split
    normalise: Normalise
    max_documents: Count | None  # the first n training rows after a seeded shuffle


class Corpora(Section):
    general: Corpus
    target: Corpus


class Tokenizer(Section):
    kind: Literal["unigram", "bpe", "word", "char"]
    vocab_size: Annotated[int, Field(ge=10, le=1_000_000)]  # sentencepiece's seeds
    character_coverage: Annotated[float, Field(ge=0.98, le=1)]  # all that sentencepiece takes
    byte_fallback: bool
    sample_mb: Positive  # at most so much text, drawn with the seed, trains the tokenizer
    threads: Threads  # fixed, as ties may break differently with another number


class Model(Section):
    family: str
    config: dict[str, Any]  # checked against the family's own typed Config


class Optimizer(Section):
    kind: Literal["sgd", "nt_asgd", "adamw"]
    lr: Positive  # of the last layer group, at the schedule's peak
    momentum: Fraction  # sgd; beta1 of adamw
    beta2: Fraction  # adamw
    weight_decay: NonNegative
    clip_norm: Positive | None
    nonmonotone_interval: Count  # nt_asgd: n of Algorithm 1, in evaluations
    discriminative_factor: Annotated[float, Field(ge=1)]  # rate of a group over the one below


class Schedule(Section):
    kind: Literal["slanted_triangular", "constant", "cosine", "linear"]
    cut_frac: Annotated[float, Field(gt=0, lt=1)]
    ratio: Annotated[float, Field(ge=1)]  # the peak rate over the lowest
    span: Literal["run", "phase"]  # one schedule for all, or anew after each unfreezing


class LanguageModelTraining(Section):
    epochs: Epochs
    batch_rows: Count  # rows (lanes) of the global batch
    bptt: Annotated[int, Field(ge=2, lt=2**31)]  # mean tokens a row and step
    variable_bptt: bool
    optimizer: Optimizer
    schedule: Schedule
    unfreeze: Literal["full", "gradual"]
    epochs_per_unfreezing: Epochs  # until the next group joins
    dropout: NonNegative  # multiplies each dropout of the family
    ar_alpha: NonNegative
    tar_beta: NonNegative
    sampled_words: Count | None  # of the softmax in training: about so many and the targets; null: all
    evaluations_per_epoch: Count


class ClassifierTraining(Section):
    start: Literal["target_lm", "general_lm", "scratch"]
    max_labels: Count | None  # a seeded stratified subset of the training labels
    epochs: Epochs  # in all, those of the unfreezing among them
    batch_rows: Count  # documents of the global batch
    bptt: Annotated[int, Field(ge=2, lt=2**31)]  # tokens a chunk
    max_tokens: Count  # of a longer document the first and the last half of these are kept
    optimizer: Optimizer
    schedule: Schedule
    unfreeze: Literal["full", "gradual", "chain_thaw"]
    epochs_per_unfreezing: Epochs
    dropout: NonNegative
    head_hidden: Count
    head_dropout: Annotated[list[Fraction], Field(min_length=2, max_length=2)]
    pooling: Literal["concat", "last", "mean"]
    label_smoothing: Fraction
    evaluations_per_epoch: Count
    patience: Count | None  # evaluations without a lower loss until training stops; null: never


class Evaluate(Section):
    bootstrap_samples: Annotated[int, Field(ge=1, le=1_000_000)]
    confidence: Annotated[float, Field(gt=0, lt=1)]
    calibration_bins: Annotated[int, Field(ge=1, le=10_000)]
    baseline_tfidf: bool
    confident_errors: CountOrZero  # shown with their texts and what moved the classifier


class Leakage(Section):
    """What is done about test documents that were trained on."""

    action: Literal["label", "drop", "stop"]  # say so beside the result, leave them out of it, or refuse
    ngram_words: Annotated[int, Field(ge=2, lt=2**31)]
    containment: Annotated[float, Field(gt=0, le=1)]  # of a document's n-grams, to count as a near duplicate
    examples: CountOrZero


class Trials(Section):
    """What each training of `tune`, `sample_efficiency` or `ablate` gets of the cluster.

    A trial is one process; those of `tune` may be of several (`tune.workers`), each with so much.
    """

    cpus: Count  # and as many threads
    gpus: Annotated[float, Field(ge=0, le=1)]  # a fraction shares one
    at_once: Count | None  # at most so many; null: as many as the cluster holds


Arm = Literal["ulmfit", "general_lm", "target_lm", "scratch", "bidirectional", "tfidf"]


class SampleEfficiency(Section):
    arms: Annotated[list[Arm], Field(min_length=1)]  # the first is compared with the others
    labels: Annotated[list[Count], Field(min_length=1)]
    seeds: Annotated[list[Seed], Field(min_length=1)]
    held_out: Annotated[float, Field(gt=0, lt=1)]  # of the labels, to stop early by
    min_steps: Count
    evaluations: Count
    classifier: dict[str, Any]  # laid over finetune_classifier
    scratch: dict[str, Any]  # laid over that for the arm without a language model
    test_documents: Count | None  # a seeded sample of so many; null: all
    bootstrap_samples: Annotated[int, Field(ge=1, le=1_000_000)]
    confidence: Annotated[float, Field(gt=0, lt=1)]

    @model_validator(mode="after")
    def _nothing_twice(self) -> SampleEfficiency:
        for name in ("arms", "labels", "seeds"):
            values = getattr(self, name)
            if len(set(values)) != len(values):
                raise ValueError(f"{name} names one twice: {values}")
        return self


class Range(Section):
    """The values of a setting that a search tries: from low to high, or some choices."""

    low: float | int | None = None
    high: float | int | None = None
    log: bool = False
    steps: Annotated[int, Field(ge=2, le=1000)] = 3  # of a grid
    choices: list[float | int | str | bool] | None = None

    @model_validator(mode="after")
    def _not_empty(self) -> Range:
        if self.choices is not None:
            if not self.choices or self.low is not None or self.high is not None:
                raise ValueError("give choices, at least one, or low and high")
        elif self.low is None or self.high is None or self.low >= self.high:
            raise ValueError(f"the range from {self.low} to {self.high} is empty; low must be below high")
        elif self.log and self.low <= 0:
            raise ValueError(f"a logarithmic range begins above 0, not at {self.low}")
        return self

    def points(self) -> list[Any]:
        """The values of a grid: evenly spaced, or evenly in the logarithm."""
        if self.choices is not None:
            return list(self.choices)
        assert self.low is not None
        assert self.high is not None
        low, high = (math.log(end) if self.log else end for end in (self.low, self.high))
        shares = [step / (self.steps - 1) for step in range(self.steps)]
        found = [low + share * (high - low) for share in shares]
        found = [math.exp(each) for each in found] if self.log else found
        whole = isinstance(self.low, int) and isinstance(self.high, int)
        return sorted({round(each) for each in found}) if whole else found


class Tune(Section):
    stage: Literal["finetune_lm", "finetune_classifier"]  # by bits per byte, or by validation error
    num_trials: CountOrZero  # 0: no search; a grid has at most so many points
    search: Literal["optuna", "random", "grid"]
    seed: Seed
    workers: Count  # of a trial: 1, the trial itself trains; more, it is a Ray Train job of so many
    labels: Count | None  # a trial trains on so many, as in sample_efficiency; null: as the stage does
    grace: Annotated[float, Field(gt=0, le=1)] | None  # of a training, before it may be stopped
    reduction: Annotated[int, Field(ge=2, lt=2**31)]  # of so many trials one goes on
    overrides: dict[Literal["finetune_lm", "finetune_classifier"], dict[str, Any]]  # not with labels
    space: dict[str, Range]  # what the trials of the stage do not read stays as it is

    @field_validator("space", mode="before")
    @classmethod
    def _without_what_is_null(cls, space: Any) -> Any:
        """So that an overlay can take a key out: laid over, a mapping only grows."""
        if not isinstance(space, Mapping):
            return space
        return {key: value for key, value in space.items() if value is not None}

    @model_validator(mode="after")
    def _labels_of_a_classifier(self) -> Tune:
        if self.labels is not None and self.stage != "finetune_classifier":
            raise ValueError(f"labels is {self.labels}, but {self.stage} reads none; set it to null")
        return self


class Ablate(Section):
    """What `headstart ablate` trains, with each trick and without it."""

    seeds: Annotated[list[Seed], Field(min_length=1)]
    labels: Count  # of a classifier
    classifier: dict[str, Any]  # laid over sample_efficiency.classifier
    pretrain_lm: dict[str, Any]  # laid over pretrain_lm


class Params(Section):
    """The whole of params.yaml."""

    run: Run
    corpus: Corpora
    tokenizer: Tokenizer
    model: Model
    pretrain_lm: LanguageModelTraining
    finetune_lm: LanguageModelTraining
    finetune_classifier: ClassifierTraining
    leakage: Leakage
    evaluate: Evaluate
    trials: Trials
    tune: Tune
    sample_efficiency: SampleEfficiency
    ablate: Ablate


T = TypeVar("T")


def load(path: Path) -> Params:
    """Read and check a params file. Raises ValueError naming each offending key."""
    return checked(read_yaml(path), where=str(path))


def checked(values: Mapping[str, Any], *, where: str) -> Params:
    """All settings, and those that are laid over others. Raises ValueError naming each offending key."""
    params = typed(Params, values, where=where)
    curve, tune = params.sample_efficiency, params.tune
    classifier, lm = params.finetune_classifier.model_dump(), params.pretrain_lm.model_dump()
    few = overlay(classifier, curve.classifier)
    laid_over: list[tuple[str, type[Section], Mapping[str, Any], Mapping[str, Any]]] = [
        ("sample_efficiency.classifier", ClassifierTraining, classifier, curve.classifier),
        ("sample_efficiency.scratch", ClassifierTraining, few, curve.scratch),
        ("ablate.classifier", ClassifierTraining, few, params.ablate.classifier),
        ("ablate.pretrain_lm", LanguageModelTraining, lm, params.ablate.pretrain_lm),
    ]
    for stage, top in tune.overrides.items():
        section = getattr(params, stage)
        laid_over.append((f"tune.overrides.{stage}", type(section), section.model_dump(), top))
    for key, kind, base, above in laid_over:
        typed(kind, overlay(base, above), where=where, prefix=f"{key}.")
    known = dict(flatten(params.model_dump()))
    for key in tune.space:
        if key not in known:
            near = difflib.get_close_matches(key, known, n=1, cutoff=0.5)
            hint = f"; did you mean `{near[0]}`?" if near else ""
            raise ValueError(f"{where}: tune.space names `{key}`, which is no setting{hint}")
        if key.split(".")[0] not in ("model", "finetune_lm", "finetune_classifier"):
            raise ValueError(f"{where}: tune.space names `{key}`, which no trial reads")
    return params


def read_yaml(path: Path) -> dict[str, Any]:
    """Parse a YAML 1.2 mapping. Raises ValueError where it is none, or nested or large beyond reason."""
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError

    try:
        text = path.read_text(encoding="utf-8")
        _check_depth(text)
        yaml = YAML(typ="safe")
        yaml.Constructor = _placing_errors(yaml.Constructor)
        content = yaml.load(text)
        _check_size(content)
    except FileNotFoundError as error:
        raise ValueError(f"{path}: no such file") from error
    except OSError as error:
        raise ValueError(f"{path}: cannot be read: {error.strerror}") from error
    except (YAMLError, ValueError) as error:
        raise ValueError(f"{path}: not valid YAML: {error}") from error
    if not isinstance(content, dict):
        raise ValueError(f"{path}: holds {type(content).__name__}, a mapping is wanted")
    return content


def _placing_errors(constructor: type[Any]) -> type[Any]:
    """A constructor that says where a value cannot be made: a 13th month, an integer of 5,000 digits."""
    from ruamel.yaml.constructor import ConstructorError

    class Placing(constructor):
        def construct_object(self, node: Any, deep: bool = False) -> Any:
            try:
                return super().construct_object(node, deep=deep)
            except ValueError as error:
                raise ConstructorError(problem=str(error), problem_mark=node.start_mark) from error

    return Placing


def _check_depth(text: str) -> None:
    """Raises ValueError for nesting that would take the parser beyond its stack, which ends the process."""
    from ruamel.yaml import YAML
    from ruamel.yaml.events import CollectionEndEvent, CollectionStartEvent

    depth = 0
    for event in YAML(typ="safe").parse(text):
        depth += isinstance(event, CollectionStartEvent) - isinstance(event, CollectionEndEvent)
        if depth > _MOST_LEVELS:
            raise ValueError(f"nested more than {_MOST_LEVELS} levels deep, from {event.start_mark}")


def _check_size(content: Any) -> None:
    """Raises ValueError where aliases make a few lines endless, or more than any settings are."""
    waiting: list[tuple[tuple[Any, ...], Any]] = [((), content)]
    num_values = 0
    while waiting:
        key, value = waiting.pop()
        num_values += 1
        if num_values > _MOST_VALUES or len(key) > _MOST_LEVELS:
            most = f"more than {_MOST_VALUES:,} values or {_MOST_LEVELS} levels"
            raise ValueError(f"its aliases, written out, are {most}")
        if isinstance(value, str) and "\0" in value:
            raise ValueError(f"`{'.'.join(map(str, key))}` holds a NUL, which no path or name can")
        if isinstance(value, Mapping):
            waiting += [((*key, name), below) for name, below in value.items()]
        elif isinstance(value, list | tuple | set):
            waiting += [(key, item) for item in value]


def typed(kind: type[T], values: Mapping[str, Any], *, where: str, prefix: str = "") -> T:
    """Check `values` strictly against a pydantic model or a dataclass.

    Raises:
        ValueError: one line for each unknown, missing or wrong key, with its dotted name and,
            for an unknown one, the nearest known name.
    """
    form = kind if issubclass(kind, BaseModel) else _form_of(kind)
    try:
        checked = form.model_validate(dict(values))
    except ValidationError as error:
        lines = sorted(_explain(error.errors(), values, form, prefix))
        raise ValueError(f"{where}: " + f"\n{where}: ".join(lines)) from error
    if isinstance(checked, kind):
        return checked
    try:
        return kind(**checked.model_dump())
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from error


def _form_of(kind: type) -> type[BaseModel]:
    """A strict model with the fields of a dataclass, which pydantic would check leniently."""
    fields: dict[str, Any] = {name: (hint, ...) for name, hint in get_type_hints(kind).items()}
    return create_model(kind.__name__, __base__=Section, **fields)


def _explain(
    errors: Sequence[Any], values: Mapping[str, Any], form: type[BaseModel], prefix: str
) -> Iterator[str]:
    """A line for each wrong key. Where a key may be of several kinds, pydantic has an error for each."""
    found: dict[tuple[str, ...], list[Any]] = {}
    for item in errors:
        found.setdefault(_key_of(item, values), []).append(item)
    for key, items in found.items():
        last = items[-1]
        dotted = prefix + ".".join(key)
        if last["type"] == "extra_forbidden" or any(item["loc"][-1:] == ("[key]",) for item in items):
            yield _unknown(dotted, _names_in(_kinds_at(form, key[:-1])))
        elif last["type"] in ("missing", "union_tag_not_found"):
            yield f"missing key `{dotted}`"
        elif not any(other[: len(key)] == key and len(other) > len(key) for other in found):
            # Else it is a mapping, as it may be, and what is wrong in there is said.
            given = last["ctx"]["tag"] if last["type"] == "union_tag_invalid" else last["input"]
            yield f"`{dotted}` is {_REPR.repr(given)}: {_wanted(items, _kinds_at(form, key))}"


def _key_of(item: Any, values: Any) -> tuple[str, ...]:
    """The keys and positions in the file that lead to an error; pydantic puts tags of unions between them."""
    key = []
    for part in item["loc"]:
        try:
            values = values[part]
        except (KeyError, IndexError, TypeError):
            continue
        key.append(str(part))
    if item["type"] == "missing":
        key.append(str(item["loc"][-1]))
    elif item["type"].startswith("union_tag"):
        key.append(item["ctx"]["discriminator"].strip("'"))
    return tuple(key)


def _wanted(items: Sequence[Any], kinds: Sequence[Any]) -> str:
    """What may stand there instead. What a check of ours says goes before what pydantic says."""
    ours = [item["msg"].removeprefix("Value error, ") for item in items if item["type"] == "value_error"]
    said = list(dict.fromkeys(_in_yaml(item, kinds) for item in items))
    begin = "Input should be "
    if ours or not all(text.startswith(begin) for text in said):
        return "; ".join(ours or said)
    null = ["null"] if type(None) in kinds else []
    return begin + " or ".join([text.removeprefix(begin) for text in said] + null)


def _in_yaml(item: Any, kinds: Sequence[Any]) -> str:
    """What pydantic says, in words of the file."""
    if item["type"] == "union_tag_invalid":
        return f"Input should be {item['ctx']['expected_tags'].replace(', ', ' or ')}"
    if item["type"] not in ("model_type", "model_attributes_type", "dict_type"):
        return str(item["msg"])
    names = _names_in(kinds)
    return "Input should be a mapping" + (f" of {', '.join(names)}" if names else "")


def _unknown(key: str, known: list[str]) -> str:
    near = difflib.get_close_matches(key.rsplit(".", 1)[-1], known, n=1, cutoff=0.5)
    hint = f"did you mean `{near[0]}`?" if near else f"known here: {', '.join(sorted(known))}"
    return f"unknown key `{key}`; {hint}"


def _kinds_at(form: Any, key: Sequence[str]) -> list[Any]:
    """The kinds of what may stand under a key."""
    kinds = list(_kinds_of(form))
    for part in key:
        kinds = [below for kind in kinds for below in _below(kind, part)]
    return kinds


def _names_in(kinds: Sequence[Any]) -> list[str]:
    """The keys of sections, and of mappings whose keys are given."""
    names: dict[str, None] = {}
    for kind in kinds:
        given = get_args(get_args(kind)[0]) if get_origin(kind) is dict else ()
        names |= dict.fromkeys([*getattr(kind, "model_fields", ()), *given])
    return list(names)


def _kinds_of(annotation: Any) -> Iterator[Any]:
    """The members of a union."""
    if get_origin(annotation) in (Annotated, Union, UnionType):
        members = get_args(annotation)
        for each in members[:1] if get_origin(annotation) is Annotated else members:
            yield from _kinds_of(each)
    else:
        yield annotation


def _below(kind: Any, part: str) -> Iterator[Any]:
    """The kinds of what stands under a name in a section or another mapping, or at a place of a list."""
    if get_origin(kind) in (dict, list):
        yield from _kinds_of(get_args(kind)[-1])
    elif part in getattr(kind, "model_fields", {}):
        yield from _kinds_of(kind.model_fields[part].annotation)


def overlay(base: Mapping[str, Any], top: Mapping[str, Any]) -> dict[str, Any]:
    """Lay `top` over `base`, key by key.

    A source whose `kind` changes is replaced whole: keys of another kind mean nothing to it. So is a range
    that becomes choices, or the other way.
    """
    merged = dict(base)
    for key, value in top.items():
        below = merged.get(key)
        if isinstance(value, Mapping) and isinstance(below, Mapping):
            other_kind = "kind" in value and "kind" in below and value["kind"] != below["kind"]
            other_range = ("choices" in value and "low" in below) or ("low" in value and "choices" in below)
            replaced = (other_kind and key == "source") or other_range
            merged[key] = dict(value) if replaced else overlay(below, value)
        else:
            merged[key] = value
    return merged


def flatten(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield (dotted key, value) for each leaf."""
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from flatten(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
