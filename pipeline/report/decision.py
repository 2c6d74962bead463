"""Decides the verdict on the figures: which head starts pay off, what to ship, and what to beware of.

A head start pays off where its best use makes clearly fewer mistakes than everything that was tried without
a head start (TF-IDF, and networks from scratch), unless a cheaper head start makes clearly fewer still.
Clearly: the interval of the paired difference lies on one side of zero. A comparison that is missing because
a training failed is never clear. `pipeline.report.verdict` words what is decided here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from pipeline.figures.classifiers import Baseline, CandidateFigures
from pipeline.figures.estimates import Difference
from pipeline.figures.label_curve import LabelsNeeded
from pipeline.report import costs
from pipeline.report.figures import TrainedFigures
from pipeline.settings.arm import TFIDF, Arm, Use

_ENOUGH = 100  # documents to judge by; with fewer, an error moves by more than a point with each


class Outcome(StrEnum):
    """Whether a classifier with a head start makes fewer mistakes than another."""

    FEWER = "fewer mistakes"
    MORE = "more mistakes"
    UNCLEAR = "no clear difference"

    @staticmethod
    def of(above: Difference | None) -> Outcome:
        """`above`: the other's error minus that with the head start, if they could be compared."""
        if above is None or not above.is_clear:
            return Outcome.UNCLEAR
        return Outcome.FEWER if above.is_clearly_more else Outcome.MORE


class Worth(StrEnum):
    """Whether a head start pays off. The best of several answers the question of the report."""

    ALWAYS = "always"
    FEW = "with few labels"
    MANY = "with many labels"
    SOME = "at some numbers of labels"
    TOGETHER = "with others, with all labels"
    IN_BLEND = "as a part of the blend"
    UNCLEAR = "no clear difference"
    NOT_ALONE = "not on its own"
    NEVER = "never"
    UNKNOWN = "not compared"

    @property
    def is_alone(self) -> bool:
        """Whether the head start pays off by itself."""
        return self in (Worth.ALWAYS, Worth.FEW, Worth.MANY, Worth.SOME)

    @property
    def rank(self) -> int:
        """0 for the best."""
        return list(Worth).index(self)


class Advice(StrEnum):
    """The advice on the classifier that was chosen."""

    SHIP = "ship"
    FORCED = "named by evaluate.ship"
    SHIP_ANYWAY = "no head start pays off, and it is the best of what was trained"
    USE_NONE = "not clearly better than always answering the largest class"


@dataclass(frozen=True)
class Best:
    """The best classifier of some, and its error."""

    arm: Arm
    error: float
    parts: tuple[Arm, ...] = ()  # of a candidate, the one of most weight first

    @property
    def sources(self) -> set[str]:
        """The head starts and ensembles behind its parts."""
        return {part.source for part in self.parts if part.source is not None}


@dataclass(frozen=True)
class Shipping:
    """The classifier that ships."""

    classifier: Best
    advice: Advice


@dataclass(frozen=True)
class AtCount:
    """The best with and without a head start at a number of labels; None: with all."""

    labels: int | None
    ours: Best
    theirs: Best | None
    above: Difference | None  # their error minus ours
    needed: LabelsNeeded | None  # labels that theirs needs for our error
    core_minutes: float | None  # of the language models that ours starts from; None if there are none

    @property
    def outcome(self) -> Outcome:
        return Outcome.of(self.above)


@dataclass(frozen=True)
class AllLabels:
    """The shipped candidate beside TF-IDF, with all labels; if TF-IDF ships, the best with a head start."""

    ships: Best
    ours: Best | None  # None if nothing with a head start was tried
    tfidf: float | None  # its error; None if it was not tried
    above: Difference | None  # TF-IDF's error minus ours

    @property
    def outcome(self) -> Outcome:
        return Outcome.of(self.above)


@dataclass(frozen=True)
class Caveats:
    """Reasons to trust the figures less."""

    majority_error: float | None  # of always answering the largest class, if what ships is no better
    few_documents: Mapping[str, int]  # by split
    went_wrong: tuple[Arm, ...]  # arms with trainings that went wrong


@dataclass(frozen=True)
class Price:
    """The cost of head starts and of predictions."""

    core_minutes: Mapping[str, float]  # of each head start's own training
    milliseconds: float | None  # per document, of what ships; None without labels


@dataclass(frozen=True)
class Verdict:
    """All that the verdict says."""

    worth: Mapping[str, Worth]  # by head start
    shipping: Shipping
    fewest: AtCount | None  # the fewest labels at which an arm with a head start has a figure
    at_a_glance: tuple[AtCount, ...]  # with the fewest labels at which both have a figure, and with all
    all_arms_failed: bool  # that begin with a head start
    some_points_failed: bool
    rivals_tried: bool  # on the label curve
    every: AllLabels
    caveats: Caveats
    price: Price

    @property
    def answer(self) -> Worth:
        """The best over all head starts."""
        return min(self.worth.values(), key=lambda worth: worth.rank)

    def agrees_with(self, other: Verdict) -> bool:
        """Whether both judge every head start alike and give the same advice on the same classifier.

        Errors may differ, and so may the parts of a blend, which differ with another seed, too; not the head
        starts that it needs.
        """
        ours, theirs = self.shipping.classifier, other.shipping.classifier
        return (
            self.worth == other.worth
            and self.shipping.advice is other.shipping.advice
            and ours.arm == theirs.arm
            and ours.sources == theirs.sources
        )


def decide(figures: TrainedFigures) -> Verdict:
    """Decide the verdict. It needs labels: without them no classifier was trained."""
    worth = {name: _worth_of(figures, name) for name in figures.head_starts}
    worth |= dict.fromkeys(_pay_off_together(figures, worth), Worth.TOGETHER)
    worth |= _parts_beside(figures, worth)
    at_counts = list(_at_counts(figures))
    return Verdict(
        worth=worth,
        shipping=_shipping(figures, worth),
        fewest=next(iter(at_counts), None),
        at_a_glance=(*[pair for pair in at_counts if pair.theirs is not None][:1], *_beside_tfidf(figures)),
        all_arms_failed=bool(_arms(figures)) and not _best_arms(figures, _arms(figures)),
        some_points_failed=bool(figures.curve.failed),
        rivals_tried=bool(_rivals(figures)),
        every=_with_all_labels(figures),
        caveats=_caveats(figures),
        price=price(figures),
    )


def price(figures: TrainedFigures) -> Price:
    return Price(
        core_minutes=_training_minutes(figures),
        milliseconds=costs.milliseconds(figures, figures.evaluate.ships) if figures.has_labels else None,
    )


def _training_minutes(figures: TrainedFigures) -> dict[str, float]:
    """Core minutes of each head start's language models."""
    return {name: _minutes(figures, [name]) for name in figures.head_starts}


def _core_minutes(figures: TrainedFigures, head_starts: Sequence[str]) -> float | None:
    """Core minutes of their language models; None if there are none."""
    return _minutes(figures, head_starts) if head_starts else None


def _minutes(figures: TrainedFigures, head_starts: Sequence[str]) -> float:
    return costs.of_language_models(figures, head_starts).core_seconds / 60


# ------------------------------------------------------------------------------- which ones pay off


def _worth_of(figures: TrainedFigures, name: str) -> Worth:
    outcomes = [*_on_label_curve(figures, name), *_own_with_all_labels(figures, name)]
    is_better = [outcome is Outcome.FEWER for outcome in outcomes]
    if not outcomes:
        return Worth.UNKNOWN
    if not any(is_better):
        return Worth.NEVER if Outcome.MORE in outcomes else Worth.UNCLEAR
    if all(is_better):
        return Worth.ALWAYS
    rising = sorted(is_better)
    return Worth.MANY if is_better == rising else Worth.FEW if is_better[::-1] == rising else Worth.SOME


def _on_label_curve(figures: TrainedFigures, name: str) -> list[Outcome]:
    """The outcome of the head start's best use at each number of labels, ascending."""
    rivals = _rivals(figures)
    if not rivals:
        return []
    cheaper = [_best_arms(figures, _uses(figures, other)) for other in _cheaper(figures, name)]
    outcomes: list[Outcome] = []
    for count, arm in _best_arms(figures, _uses(figures, name)).items():
        others = [errors[count] for errors in cheaper if count in errors]
        is_beaten = any(_between(figures, arm, other, count) is Outcome.MORE for other in others)
        outcomes.append(Outcome.MORE if is_beaten else _against_all(figures, arm, rivals, count))
    return outcomes


def _cheaper(figures: TrainedFigures, name: str) -> list[str]:
    """The head starts that took less core time to train."""
    spent = _training_minutes(figures)
    return [other for other in spent if spent[other] < spent[name]]


def _against_all(figures: TrainedFigures, arm: Arm, rivals: Sequence[Arm], count: int) -> Outcome:
    outcomes = {_between(figures, arm, rival, count) for rival in rivals}
    if Outcome.MORE in outcomes:
        return Outcome.MORE
    return Outcome.FEWER if outcomes == {Outcome.FEWER} else Outcome.UNCLEAR


def _between(figures: TrainedFigures, arm: Arm, rival: Arm, count: int) -> Outcome:
    return Outcome.of(figures.curve.difference(arm, rival, count))


def _arms(figures: TrainedFigures) -> list[Arm]:
    """The arms with a head start; none that chooses its labels, which a rival could do, too."""
    rivals = _rivals(figures)
    return [arm for arm in figures.curve.arms if arm not in rivals and not arm.use.chooses_labels]


def _uses(figures: TrainedFigures, name: str) -> list[Arm]:
    """The arms of this head start alone."""
    return [arm for arm in _arms(figures) if arm.source == name and not figures.curve.beside.get(arm)]


def _rivals(figures: TrainedFigures) -> list[Arm]:
    """The arms without a head start."""
    return [arm for arm in figures.curve.arms if arm.use in (Use.TFIDF, Use.SCRATCH)]


def _best_arms(figures: TrainedFigures, arms: Iterable[Arm]) -> dict[int, Arm]:
    """The arm of the lowest error at each number of labels, ascending, where there is any."""
    curve, arms = figures.curve.curve, list(arms)
    errors = {
        count: {arm: curve[arm][count].error.value for arm in arms if count in curve.get(arm, {})}
        for count in figures.curve.labels
    }
    return {count: min(by_arm, key=lambda arm: by_arm[arm]) for count, by_arm in errors.items() if by_arm}


def _at_counts(figures: TrainedFigures) -> Iterable[AtCount]:
    """The best with and without a head start at each number of labels that has one with, ascending."""
    ours, theirs = (_best_arms(figures, arms) for arms in (_arms(figures), _rivals(figures)))
    curve = figures.curve

    def best(arm: Arm, count: int) -> Best:
        return Best(arm, curve.curve[arm][count].error.value)

    for count, arm in ours.items():
        rival = theirs.get(count)
        names = [*curve.head_starts[arm], *curve.beside.get(arm, [])]
        yield AtCount(
            count,
            best(arm, count),
            None if rival is None else best(rival, count),
            None if rival is None else curve.difference(arm, rival, count),
            None if rival is None else curve.needed(rival, arm, count),
            _core_minutes(figures, names),
        )


def _own_with_all_labels(figures: TrainedFigures, name: str) -> list[Outcome]:
    """The outcome against TF-IDF of this head start's own candidate with the lowest validation error.

    No network from scratch is a candidate, so one that does as well with most labels leaves it open.
    """
    mine = [
        candidate for candidate in figures.evaluate.candidates.values() if candidate.head_starts == [name]
    ]
    above = min(mine, key=_validation_error).tfidf_above if mine else None
    if above is None:
        return []
    outcome = Outcome.of(above)
    is_open = outcome is Outcome.FEWER and not _beats_scratch(figures, name)
    return [Outcome.UNCLEAR if is_open else outcome]


def _beats_scratch(figures: TrainedFigures, name: str) -> bool:
    """Whether it clearly beats every network from scratch at the most labels; true if there is none."""
    scratch = [arm for arm in _rivals(figures) if arm != TFIDF]
    arm = _best_arms(figures, _uses(figures, name)).get(most := max(figures.curve.labels))
    return not scratch or (arm is not None and _against_all(figures, arm, scratch, most) is Outcome.FEWER)


def _pay_off_together(figures: TrainedFigures, worth: Mapping[str, Worth]) -> list[str]:
    """The head starts in what ships, if it is clearly better than TF-IDF and none of them is alone."""
    ships = figures.evaluate.ships
    names = ships.head_starts
    alone = any(worth[name].is_alone for name in names if name in worth)
    if len(names) < 2 or alone or Outcome.of(ships.tfidf_above) is not Outcome.FEWER:
        return []
    return names if any(_beats_scratch(figures, name) for name in names) else []


def _parts_beside(figures: TrainedFigures, worth: Mapping[str, Worth]) -> dict[str, Worth]:
    """The head starts in what ships that do not pay off by themselves, beside one that does.

    One pays off as a part of a blend that makes clearly fewer mistakes than a blend of all else.
    """
    names = figures.evaluate.ships.head_starts
    if not any(worth[name].is_alone for name in names if name in worth):
        return {}
    parts: dict[str, Worth] = {}
    for name in names:
        without = figures.evaluate.blend_without.get(name)
        helps = without is not None and without.above.is_clearly_more
        if helps and worth.get(name) in (Worth.NEVER, Worth.UNCLEAR):
            parts[name] = Worth.IN_BLEND
        elif worth.get(name) is Worth.NEVER:
            parts[name] = Worth.NOT_ALONE
    return parts


# --------------------------------------------------------------------- what ships, and what of it


def _shipping(figures: TrainedFigures, worth: Mapping[str, Worth]) -> Shipping:
    evaluated = figures.evaluate
    names = evaluated.ships.head_starts
    if evaluated.forced:
        advice = Advice.FORCED
    elif _is_useless(figures):
        advice = Advice.USE_NONE
    elif names and all(worth.get(name) is Worth.NEVER for name in names):
        advice = Advice.SHIP_ANYWAY
    else:
        advice = Advice.SHIP
    return Shipping(_candidate(figures, evaluated.shipped), advice)


def _candidate(figures: TrainedFigures, arm: Arm) -> Best:
    candidate = figures.evaluate.candidates[arm]
    largest_first = sorted(candidate.parts, key=lambda part: -candidate.parts[part])
    return Best(arm, candidate.scores.error.value, tuple(largest_first))


def _with_all_labels(figures: TrainedFigures) -> AllLabels:
    evaluated = figures.evaluate
    ours = _best_with_head_start(figures) if evaluated.shipped == TFIDF else evaluated.shipped
    return AllLabels(
        ships=_candidate(figures, evaluated.shipped),
        ours=None if ours is None else _candidate(figures, ours),
        tfidf=None if evaluated.tfidf is None else evaluated.tfidf.scores.error.value,
        above=None if ours is None else evaluated.candidates[ours].tfidf_above,
    )


def _beside_tfidf(figures: TrainedFigures) -> Iterable[AtCount]:
    """With all labels: the best with a head start, and TF-IDF; nothing if either was not tried."""
    evaluated = figures.evaluate
    arm = _best_with_head_start(figures) or evaluated.shipped
    if evaluated.tfidf is None or arm == TFIDF or evaluated.candidates[arm].tfidf_above is None:
        return
    yield AtCount(
        labels=None,
        ours=_candidate(figures, arm),
        theirs=_candidate(figures, TFIDF),
        above=evaluated.candidates[arm].tfidf_above,
        needed=None,
        core_minutes=_core_minutes(figures, evaluated.candidates[arm].head_starts),
    )


def _best_with_head_start(figures: TrainedFigures) -> Arm | None:
    """The shipped candidate if it has a head start, else the best on validation documents that has."""
    evaluated = figures.evaluate
    if evaluated.ships.head_starts:
        return evaluated.shipped
    rest = {arm: candidate for arm, candidate in evaluated.candidates.items() if candidate.head_starts}
    return min(rest, key=lambda arm: _validation_error(rest[arm]), default=None)


def _validation_error(candidate: CandidateFigures) -> float:
    return candidate.validation.error


def _caveats(figures: TrainedFigures) -> Caveats:
    evaluated = figures.evaluate
    sizes = {"test": evaluated.num_documents, "validation": evaluated.num_validation_documents}
    return Caveats(
        majority_error=evaluated.baselines.majority_class.error if _is_useless(figures) else None,
        few_documents={split: size for split, size in sizes.items() if size < _ENOUGH},
        went_wrong=tuple(figures.curve.worse_than_fewer),
    )


def _is_useless(figures: TrainedFigures) -> bool:
    return Baseline.MAJORITY_CLASS in figures.evaluate.not_better_than
