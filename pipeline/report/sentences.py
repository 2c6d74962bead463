"""The report's sentences with figures, shared by the page and the summary."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from pipeline.figures.classifiers import Rival
from pipeline.figures.cost import Spent
from pipeline.figures.label_curve import ByArm, ByCount
from pipeline.figures.predictions import Attention
from pipeline.report import findings
from pipeline.report.figures import TRAININGS, Figures, name_of
from pipeline.report.figures import in_context as in_context_rows
from pipeline.settings.arm import TFIDF, Arm, Use

_LEARNED_NOTHING = "were no better than the class frequencies"


def key_figures(figures: Figures) -> list[str]:
    """Error, against TF-IDF; why this one ships; leaked documents; coverage; cost."""
    if not figures.has_labels:
        return _coverage(figures)
    return [
        _error(figures),
        _choice(figures),
        *_without(figures),
        *_leaks(figures),
        *_coverage(figures),
        *_cost(figures),
    ]


def _coverage(figures: Figures) -> list[str]:
    """How much of the target text imported vectors know."""
    found = {name: each.finetune_lm.coverage for name, each in figures.trained.items()}
    return [
        f"{name} was imported: {each.share_of_words:.1%} of the vocabulary and "
        f"{each.share_of_running_words:.1%} of the running words of the target text have a vector."
        for name, each in found.items()
        if each is not None
    ]


def _choice(figures: Figures) -> str:
    """What ships, why, and how sure the choice is."""
    found, ships = findings.choice(figures), name_of(figures.evaluate.shipped)
    if found.forced:
        return f"What ships, {ships}, is named by evaluate.ship."
    which = "the lowest error of all candidates, " if found.is_lowest else "an error of "
    said = (
        f"What ships, {ships}, has {which}{found.error:.1%}, on "
        f"{figures.evaluate.num_validation_documents:,} validation documents"
    )
    if not found.close:
        return f"{said}, clearly below all {len(figures.evaluate.candidates) - 1} others."
    close = ", ".join(f"{name_of(arm)} ({error:.1%})" for arm, error in found.close.items())
    return (
        f"{said}. It has the lowest log loss among the candidates that are not clearly worse than the best; "
        f"the others are {close}."
    )


def _without(figures: Figures) -> list[str]:
    """The blend's error without each of its head starts."""
    return [
        f"Without {name} the blend gets {each.error:.1%} wrong, {_points_more(each)}."
        for name, each in figures.evaluate.blend_without.items()
    ]


def _points_more(rival: Rival) -> str:
    points = rival.above.points
    said = (
        f"{abs(points.value):.1f} points {'more' if points.value >= 0 else 'fewer'} ({points.interval:.1f})"
    )
    return said if rival.above.is_clear else f"{said}: no clear difference"


def _error(figures: Figures) -> str:
    found = figures.evaluate
    said = (
        f"The classifier that ships, {name_of(found.shipped)}, gets {found.scores.error.value:.1%} of "
        f"{found.num_documents:,} held-out documents wrong ({found.scores.error.interval:.1%})."
    )
    tfidf = found.baselines.tfidf
    if tfidf is None or found.shipped == TFIDF:
        return said
    is_better = tfidf.above.value >= 0
    by = (tfidf.above if is_better else -tfidf.above).points
    unclear = "" if tfidf.above.is_clear else ": no clear difference"
    if tfidf.above.value == 0:
        return (
            f"{said} TF-IDF with logistic regression gets as many wrong on the same labels and documents "
            f"(by {by.interval:.1f} points{unclear})."
        )
    return (
        f"{said} That is {by.value:.1f} points ({by.interval:.1f}) {'better' if is_better else 'worse'} than "
        f"TF-IDF with logistic regression on the same labels and documents, which gets {tfidf.error:.1%} "
        f"wrong{unclear}."
    )


def _leaks(figures: Figures) -> list[str]:
    leakage = figures.evaluate.leakage
    if not leakage.num_leaked:
        return []
    said = f"{leakage.num_leaked:,} test documents are also in the training text, word for word or nearly"
    if leakage.action == "drop":
        return [f"{said}; all figures leave them out."]
    if leakage.error_without is not None:
        said += f"; without them the classifier gets {leakage.error_without:.1%} wrong"
    if leakage.tfidf_error_without is not None:
        said += f", TF-IDF {leakage.tfidf_error_without:.1%}"
    return [f"{said}."]


def labels_needed(count: int) -> str:
    """The sentence above the table of every arm against every other one."""
    return f"Each row: the labels that an arm needs for the error that another one has with {count:,} labels."


def _cost(figures: Figures) -> list[str]:
    parts, total = [], 0.0
    for name, trained in figures.trained.items():
        seconds = {stage: trained.costs[stage].seconds for stage in TRAININGS}
        said = ", ".join(f"{stage} {each / 60:.1f}" for stage, each in seconds.items())
        parts.append(f"{name} {sum(seconds.values()) / 60:.1f} minutes ({said})")
        total += sum(seconds.values())
    said = f"Training took {total / 60:.1f} minutes: {'; '.join(parts)}"
    tfidf = figures.evaluate.tfidf
    if tfidf is not None and tfidf.cost is not None:
        said += f". TF-IDF took {tfidf.cost.seconds / 60:.1f} minutes"
    cores = Spent.total(figures.curve.cost.values()).core_seconds
    return [f"{said}. The label curve took {cores / 60:.1f} core minutes."]


def distilled(figures: Figures) -> str:
    """Tell how much a student keeps of the classifier that ships, and how much it saves."""
    found = figures.distilled
    assert found is not None
    teacher, student = found.teacher, found.distilled
    faster = student.documents_per_second / teacher.documents_per_second
    kept = student.scores.accuracy.value / teacher.scores.accuracy.value
    return (
        f"The classifier of {found.student} learned from what ships on {found.num_taught:,} documents, "
        f"{found.num_labels:,} of them labelled. It keeps {kept:.1%} of its accuracy and agrees with it on "
        f"{found.agreement:.1%} of {found.num_documents:,} test documents. On the machine of the run it "
        f"labels {faster:,.1f} times as many a second. Its files, in data/distilled, take "
        f"{student.num_bytes / 1e6:,.1f} MB instead of {teacher.num_bytes / 1e6:,.1f}."
    )


def taught(figures: Figures) -> list[str]:
    """Name the head starts that had a teacher, and the part of each that began as it."""
    teachers = {name: each.pretrain_lm.teacher for name, each in figures.trained.items()}
    return [
        f"The language models of {name} learned from those of {teacher.headstart}; "
        f"{teacher.begun_share:.0%} of its numbers began as its teacher's."
        for name, teacher in teachers.items()
        if teacher is not None
    ]


def comparisons(figures: Figures) -> list[str]:
    """Which arm is ahead at which numbers of labels, the base or the other, by their paired interval.

    Arms that are behind the base everywhere, at the same numbers of labels, share a sentence.
    """
    behind_everywhere: dict[tuple[int, ...], list[str]] = {}
    said, base = [], name_of(figures.curve.base)
    for each in findings.standings(figures):
        arm = name_of(each.arm)
        if each.is_behind_everywhere:
            behind_everywhere.setdefault(each.behind, []).append(arm)
            continue
        parts = [
            f"{first} is ahead of {second} with {_counts(counts)} labels"
            for first, second, counts in ((base, arm, each.behind), (arm, base, each.ahead))
            if counts
        ]
        if each.unclear:
            parts.append(
                f"with {_counts(each.unclear)} labels there is no clear difference between {base} and {arm}"
            )
        if each.crossing is not None:
            parts.append(f"they cross between {each.crossing[0]:,} and {each.crossing[1]:,}")
        said.append(_sentence(parts))
    return said + [
        _sentence([f"{base} is ahead of {listed(names)} with {_counts(counts)} labels"])
        for counts, names in behind_everywhere.items()
    ]


def label_curve(figures: Figures) -> list[str]:
    """Remarks on the label curve's points."""
    return [*labels_left_out(figures), *worse_than_fewer(figures), *restarts(figures)]


def chosen(figures: Figures) -> list[str]:
    """Tell for each arm that chooses its labels what that saved, beside the same arm with labels drawn."""
    said = []
    for each in findings.chosen_labels(figures):
        if not each.better:
            said.append(
                f"{name_of(each.drawn)}: choosing labels clearly saves none; at no number of labels are "
                "there clearly fewer mistakes than with labels drawn at random."
            )
            continue
        worth = [
            f"{count:,} chosen labels are worth {needed} drawn at random"
            for count, needed in each.worth.items()
        ]
        said.append(
            f"{name_of(each.drawn)}: with chosen labels there are clearly fewer mistakes at "
            f"{_counts(each.better)}" + (f"; {listed(worth)}." if worth else ".")
        )
    return said


def in_context(figures: Figures) -> list[str]:
    """Tell what the arms that train nothing were asked, and what could not be asked; empty without any."""
    rows, found = in_context_rows(figures), figures.curve.in_context
    if not rows and not found.left_out:
        return []
    said = [
        "A language model was asked, and nothing trained: how likely it finds the words of each class behind "
        "a text, in the template zero_shot.template. Before the text it was shown labelled examples, as many "
        f"as the number of labels says. Always answering the largest class gets {found.majority_error:.1%} "
        "wrong."
    ]
    if rows and all(row.point is None or row.point.error.high >= found.majority_error for row in rows):
        said.append("None of them is clearly better than that.")
    return said + [
        f"{name_of(arm)} was not shown {count:,} examples: {reason}."
        for arm, reasons in found.left_out.items()
        for count, reason in reasons.items()
    ]


def labels_left_out(figures: Figures) -> list[str]:
    """Numbers of labels that were asked for and could not be trained on; empty without any."""
    by_reason: dict[str, list[int]] = {}
    for count, reason in figures.curve.left_out.items():
        by_reason.setdefault(reason, []).append(count)
    return [f"Left out: {_counts(counts)} labels, as {reason}." for reason, counts in by_reason.items()]


def worse_than_fewer(figures: Figures) -> list[str]:
    """Points that are clearly worse than one of the same arm with fewer labels; empty without any."""
    return [
        f"{name_of(arm)} is clearly worse with {count:,} labels than with {fewer:,}: trainings went wrong "
        "there, and comparisons and the labels saved leave this point out."
        for arm, worse in figures.curve.worse_than_fewer.items()
        for count, fewer in worse.items()
    ]


def restarts(figures: Figures) -> list[str]:
    """Trainings of the label curve that restarted, and those that never took off; empty without any."""
    curve, said = figures.curve, []
    if curve.began_anew:
        trainings = _trainings(figures, curve.began_anew)
        said.append(f"These trainings {_LEARNED_NOTHING} and restarted at half the rates: {trainings}.")
    if curve.never_took_off:
        trainings = _trainings(figures, curve.never_took_off)
        said.append(
            f"These trainings {_LEARNED_NOTHING} to the end, and count in the curve all the same: "
            f"{trainings}."
        )
    return said


def _trainings(figures: Figures, by_arm: ByArm[ByCount[int]]) -> str:
    """The number of such trainings, by arm and number of labels."""
    curve = figures.curve

    def total(arm: Arm, count: int) -> int:
        return len(curve.head_starts[arm]) * curve.curve[arm][count].num_seeds

    return "; ".join(
        f"{name_of(arm)} with "
        + listed([f"{count:,} labels ({num} of {total(arm, count)})" for count, num in by_count.items()])
        for arm, by_count in by_arm.items()
    )


def never_predicted(figures: Figures) -> list[str]:
    """The classes that the classifier never answers; empty without any."""
    never = [shown_label(name) for name in findings.never_predicted(figures)]
    return [f"Never predicted: {listed(never)}."] if never else []


def classifier_restarts(figures: Figures) -> list[str]:
    """The head starts whose classifier began anew, and whose never took off; empty without any."""
    began = [
        f"{name} ({'once' if each.restarts == 1 else f'{each.restarts} times'})"
        for name, each in figures.classifiers.items()
        if each.restarts
    ]
    never = [name for name, each in figures.classifiers.items() if not each.took_off]
    said = []
    if began:
        said.append(
            f"These classifiers {_LEARNED_NOTHING} and began anew at half the rates: {listed(began)}."
        )
    if never:
        said.append(f"These classifiers {_LEARNED_NOTHING} to the end: {listed(never)}.")
    return said


def of_classifiers(figures: Figures) -> list[str]:
    """Return the remarks below the table of classifiers."""
    return [
        *never_predicted(figures),
        *classifier_restarts(figures),
        *cuts(figures),
        *mixes(figures),
        *features_beside(figures, figures.head_starts),
    ]


def cuts(figures: Figures) -> list[str]:
    """The head starts that truncate at least a hundredth of the documents."""
    shares = [f"{name} {share:.0%}" for name, share in findings.cut_shares(figures).items()]
    if not shares:
        return []
    return [
        "Share of training documents truncated to their first and last max_tokens/2 tokens: "
        f"{listed(shares)}."
    ]


def attention(found: Attention) -> str:
    """Explain the table and the texts of attention weights."""
    return (
        f"The words that attention pooling looked at most in {found.num_documents:,} test documents, by "
        "how many times the weight that they would have if it looked at all alike; and some of the "
        "documents, where a deeper shade is more weight."
    )


def mixes(figures: Figures) -> list[str]:
    """How each classifier that mixes layers weighs them."""
    return [
        f"The classifier of {name} learned to mix its layers, from the lowest, by "
        f"{listed([f'{weight:.2f}' for weight in each.mix.weights])}, times {each.mix.factor:.2f}."
        for name, each in figures.classifiers.items()
        if each.mix is not None
    ]


def features_beside(figures: Figures, classifiers: Iterable[str]) -> list[str]:
    """Name those of these classifiers that read features of another head start."""
    found = {name: figures.classifiers.get(name) for name in classifiers}
    return [
        f"The classifier of {name} also reads the frozen features of {each.beside}, which stay as they are "
        "where words are said to have moved its answer."
        for name, each in found.items()
        if each is not None and each.beside is not None
    ]


def networks(parts: Iterable[Arm]) -> list[str]:
    """The head starts whose own classifiers are among the parts of a classifier."""
    return [arm.source for arm in parts if arm.source is not None and arm.use is Use.NETWORK]


def listed(names: Sequence[str]) -> str:
    """`a, b and c`."""
    *most, last = names
    return f"{', '.join(most)} and {last}" if most else last


def _counts(counts: Sequence[int]) -> str:
    return listed([f"{count:,}" for count in counts])


def _sentence(parts: Sequence[str]) -> str:
    text = "; ".join(parts)
    return f"{text[0].upper()}{text[1:]}."


def bands(figures: Figures) -> str:
    """The bands of the label curve, and what they cover."""
    curve = figures.curve
    over = f"{curve.confidence:.0%} bootstrap bands over test documents"
    if curve.num_seeds == 1:
        return f"{over}; there is one seed, so they do not cover its spread"
    few = "; with so few seeds they are too narrow" if curve.num_seeds < 5 else ""
    return f"{over} and {curve.num_seeds} seeds{few}"


def leakage(figures: Figures) -> str:
    """One paragraph."""
    found = figures.leaks
    if not found.num_leaked:
        return f"None of {found.num_test_documents:,}."
    where = ", ".join(
        f"{name} {each.num_leaked:,}" for name, each in found.sources.items() if each.num_leaked
    )
    said = (
        f"{found.num_leaked:,} of {found.num_test_documents:,} ({found.share:.1%}), "
        f"{found.num_exact:,} word for word, {found.num_near:,} nearly ({where})."
    )
    if not figures.has_labels:  # there is no error to judge
        return said
    judged = figures.evaluate.leakage
    if judged.action == "drop":
        return f"{said} All figures leave them out."
    if judged.error_without is not None:
        said += f" Without them the classifier's error is {judged.error_without:.1%}."
    return said


def shown_label(name: str) -> str:
    """A label, in quotes where blanks at its ends would not be seen."""
    return repr(name) if name != name.strip(" \t") else name


def remarks(figures: Figures) -> list[str]:
    """What to know of the labelled data; empty if there is nothing."""
    target = figures.prepared["target"]
    found = list(target.remarks)
    rows = [f"{count:,} ({reason.replace('_', ' ')})" for reason, count in target.skipped.items() if count]
    if rows and target.num_classes:
        found.append(f"rows left out: {', '.join(rows)}")
    return [f"About the data: {'; '.join(found)}."] if found else []


def left_out(figures: Figures) -> str:
    """The rows that `prepare` left out and repaired, and what it remarked."""

    def rows(by_corpus: Mapping[str, Mapping[str, int]]) -> str:
        found = [
            f"{corpus}: {count:,} ({reason.replace('_', ' ')})"
            for corpus, by_reason in by_corpus.items()
            for reason, count in by_reason.items()
            if count
        ]
        return "; ".join(found) or "nothing"

    prepared = figures.prepared
    skipped = rows({corpus: each.skipped for corpus, each in prepared.items()})
    repaired = rows({corpus: each.repaired for corpus, each in prepared.items()})
    remarks = [
        f" {corpus[0].upper()}{corpus[1:]}: {remark}."
        for corpus, each in prepared.items()
        for remark in each.remarks
    ]
    return f"Rows left out: {skipped}. Repaired: {repaired}.{''.join(remarks)}"


def search(figures: Figures) -> str:
    found = figures.search
    assert found is not None
    states = ", ".join(f"{count} {state}" for state, count in found.states.items() if count)
    what = found.stage + ("" if found.labels is None else f" with {found.labels:,} labels")
    return (
        f"{found.num_trials} trials of {what} ({states}). The best, trial {found.best.trial}: "
        f"{found.measure} {found.best.value:.4f}, on validation text."
    )


def ablations(figures: Figures) -> str:
    found = figures.ablations
    assert found is not None
    return (
        f"Each trick switched off alone; seeds: {found.num_seeds}; classifiers of {found.labels:,} labels. "
        "If the interval lies above 0, the trick was worth having here."
    )
