"""The report's sentences with figures, shared by the page and the summary."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pipeline.report.figures import (
    TRAININGS,
    Figures,
    above_base,
    beside,
    by_arm,
    examples_left_out,
    name_of,
    went_wrong,
)
from pipeline.report.figures import in_context as in_context_rows
from pipeline.settings.arm import Arm

_WORTH_SAYING = 0.01  # of the documents
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
    found = {name: figures[f"finetune_lm-{name}"].get("coverage") for name in figures.head_starts}
    return [
        f"{name} was imported: {each['share_of_words']:.1%} of the vocabulary and "
        f"{each['share_of_running_words']:.1%} of the running words of the target text have a vector."
        for name, each in found.items()
        if each is not None
    ]


def _choice(figures: Figures) -> str:
    """What ships, why, and how sure the choice is."""
    metrics = figures["evaluate"]
    shipped, candidates = metrics["shipped"], metrics["candidates"]
    chosen = name_of(shipped)
    if metrics["forced"]:
        return f"What ships, {chosen}, is named by evaluate.ship."
    errors = {name: each["validation"]["error"] for name, each in candidates.items()}
    close = [
        f"{name_of(name)} ({errors[name]:.1%})"
        for name, each in candidates.items()
        if name != shipped and each["validation"]["above_low"] <= 0
    ]
    least = min(errors.values())
    is_least = errors[shipped] == least
    said = (
        f"What ships, {chosen}, has {'the lowest error of all candidates, ' if is_least else 'an error of '}"
        f"{errors[shipped]:.1%}, on {metrics['num_validation_documents']:,} validation documents"
    )
    if not close:
        return f"{said}, clearly below all {len(candidates) - 1} others."
    return (
        f"{said}. Among those that are not clearly worse there than the lowest, it has the lowest log loss; "
        f"the others are {', '.join(close)}."
    )


def _without(figures: Figures) -> list[str]:
    """The blend's error without each of its head starts."""
    found = figures["evaluate"].get("blend_without", {})
    return [
        f"Without {name} the blend gets {each['error']:.1%} wrong, {_points_more(each)}."
        for name, each in found.items()
    ]


def _points_more(above: Mapping[str, float]) -> str:
    points, low, high = (100 * above[key] for key in ("above", "above_low", "above_high"))
    said = f"{abs(points):.1f} points {'more' if points >= 0 else 'fewer'}"
    unclear = ": no clear difference" if low <= 0 <= high else ""
    return f"{said} ({low:.1f} to {high:.1f}){unclear}"


def _error(figures: Figures) -> str:
    metrics = figures["evaluate"]
    said = (
        f"The classifier that ships, {name_of(metrics['shipped'])}, gets {metrics['error']:.1%} of "
        f"{metrics['num_documents']:,} held-out documents "
        f"wrong ({metrics['error_low']:.1%} to {metrics['error_high']:.1%})."
    )
    tfidf = metrics["baselines"].get("tfidf")
    if tfidf is None or metrics["shipped"] == "tfidf":
        return said
    sign = 100 if tfidf["above"] >= 0 else -100
    low, high = (points + 0.0 for points in sorted((sign * tfidf["above_low"], sign * tfidf["above_high"])))
    unclear = ": no clear difference" if low <= 0 <= high else ""
    if tfidf["above"] == 0:
        return (
            f"{said} TF-IDF with logistic regression gets as many wrong on the same labels and documents "
            f"(by {low:.1f} to {high:.1f} points{unclear})."
        )
    return (
        f"{said} That is {sign * tfidf['above']:.1f} points ({low:.1f} to {high:.1f}) "
        f"{'better' if sign > 0 else 'worse'} than TF-IDF with logistic regression on the same labels and "
        f"documents, which gets {tfidf['error']:.1%} wrong{unclear}."
    )


def _leaks(figures: Figures) -> list[str]:
    leakage = figures["evaluate"]["leakage"]
    if not leakage["num_leaked"]:
        return []
    said = f"{leakage['num_leaked']:,} test documents are also in the training text, word for word or nearly"
    if leakage["action"] == "drop":
        return [f"{said}; all figures leave them out."]
    if "error_without" in leakage:
        said += f"; without them the classifier gets {leakage['error_without']:.1%} wrong"
    if "tfidf_error_without" in leakage:
        said += f", TF-IDF {leakage['tfidf_error_without']:.1%}"
    return [f"{said}."]


def labels_needed(count: int) -> str:
    """The sentence above the table of every arm against every other one."""
    return f"Each row: the labels that an arm needs for the error that another one has with {count:,} labels."


def number_of_labels(needed: Mapping[str, float]) -> str:
    """A number of labels with its interval; outside of what was trained, a bound."""

    def end(side: str) -> str | None:
        if f"labels_{side}" in needed:
            return f"{needed[f'labels_{side}']:,.0f}"
        beyond = needed.get(f"labels_{side}_more_than")
        return f"more than {beyond:,}" if beyond is not None else None

    number = number_without_interval(needed)
    low, high = end("low"), end("high")
    if high is None or (high == number and low in (None, number)):
        return number
    return f"{number} ({low} to {high})" if low is not None else f"{number} (up to {high})"


def number_without_interval(needed: Mapping[str, float]) -> str:
    if "more_than" in needed:
        return f"more than {needed['more_than']:,}"
    return f"at most {needed['at_most']:,}" if "at_most" in needed else f"{needed['labels']:,.0f}"


def _cost(figures: Figures) -> list[str]:
    parts, total = [], 0.0
    for name in figures.head_starts:
        trainings = [figures[f"{stage}-{name}"] for stage in TRAININGS]
        if not all("seconds" in training for training in trainings):
            continue
        seconds = [float(training["seconds"]) for training in trainings]
        said = ", ".join(f"{stage} {each / 60:.1f}" for stage, each in zip(TRAININGS, seconds, strict=True))
        parts.append(f"{name} {sum(seconds) / 60:.1f} minutes ({said})")
        total += sum(seconds)
    if not parts:
        return []
    said = f"Training took {total / 60:.1f} minutes: {'; '.join(parts)}"
    tfidf = figures["evaluate"]["baselines"].get("tfidf", {})
    if "seconds" in tfidf:
        said += f". TF-IDF took {tfidf['seconds'] / 60:.1f} minutes"
    cores = sum(cost["core_seconds"] for cost in figures["sample_efficiency"]["cost"].values())
    return [f"{said}. The label curve took {cores / 60:.1f} core minutes."]


def distilled(figures: Figures) -> str:
    """Tell how much a student keeps of the classifier that ships, and how much it saves."""
    found = figures["distil_classifier"]
    teacher, student = found["teacher"], found["distilled"]
    faster = student["documents_per_second"] / teacher["documents_per_second"]
    kept = student["accuracy"] / teacher["accuracy"]
    return (
        f"The classifier of {found['student']} learned from what ships on {found['num_taught']:,} documents, "
        f"{found['num_labels']:,} of them with labels. It keeps {kept:.1%} of its accuracy and says the same "
        f"of {found['agreement']:.1%} of {found['num_documents']:,} test documents. On the machine of the "
        f"run it labels {faster:,.1f} times as many a second. Its files, in data/distilled, have "
        f"{student['num_bytes'] / 1e6:,.1f} MB in place of {teacher['num_bytes'] / 1e6:,.1f}."
    )


def taught(figures: Figures) -> list[str]:
    """Name the head starts that had a teacher, and the part of each that began as it."""
    lessons = {name: figures[f"pretrain_lm-{name}"].get("teacher") for name in figures.head_starts}
    return [
        f"The language models of {name} learned from those of {lesson['headstart']}; "
        f"{lesson['begun_share']:.0%} of its numbers began as its teacher's."
        for name, lesson in lessons.items()
        if lesson is not None
    ]


def comparisons(figures: Figures) -> list[str]:
    """Which arm is ahead at which numbers of labels, the base or the other, by their paired interval.

    Arms that are behind the base everywhere, at the same numbers of labels, share a sentence.
    """
    first_arm, wrong = figures["sample_efficiency"]["base"], went_wrong(figures)
    base = name_of(first_arm)
    behind_everywhere: dict[tuple[int, ...], list[str]] = {}
    said = []
    for arm, at_all_counts in above_base(figures).items():
        by_count = {
            count: each
            for count, each in at_all_counts.items()
            if not {(arm, count), (first_arm, count)} & wrong
        }
        if not by_count:
            continue
        ahead = [count for count, each in by_count.items() if each["difference_low"] > 0]
        behind = [count for count, each in by_count.items() if each["difference_high"] < 0]
        unclear = [count for count in by_count if count not in (*ahead, *behind)]
        if len(ahead) == len(by_count):
            behind_everywhere.setdefault(tuple(ahead), []).append(name_of(arm))
            continue
        parts = [
            f"{first} is ahead of {second} with {_counts(counts)} labels"
            for first, second, counts in ((base, name_of(arm), ahead), (name_of(arm), base, behind))
            if counts
        ]
        if unclear:
            both = f"{base} and {name_of(arm)}"
            parts.append(f"with {_counts(unclear)} labels there is no clear difference between {both}")
        if ahead and behind:
            low, high = sorted((ahead, behind))
            if max(low) < min(high):
                parts.append(f"they cross between {max(low):,} and {min(high):,}")
        said.append(_sentence(parts))
    return said + [
        _sentence([f"{base} is ahead of {listed(names)} with {_counts(counts)} labels"])
        for counts, names in behind_everywhere.items()
    ]


def label_curve(figures: Figures) -> list[str]:
    """Remarks on the label curve's points."""
    return [*labels_left_out(figures), *worse_than_fewer(figures), *restarts(figures)]


def choosing(study: Mapping[str, Any]) -> str:
    """Tell what `headstart suggest --simulate` tried, and whether choosing saves labels."""
    first, *later = study["counts"]
    better = [
        name
        for name, by_count in study["above"].items()
        if any(by_count[str(count)]["difference_high"] < 0 for count in later)
    ]
    verdict = "None is clearly better than random choice: choosing saves nothing."
    if better:
        verdict = (
            "Clearly better than random choice at some number, each interval taken by itself: "
            f"{listed(better)}."
        )
    return (
        f"Labels chosen in rounds among {study['num_documents']:,} documents, the first {first:,} at random "
        f"and the others by probes on the features of {study['headstart']}; error on "
        f"{study['num_judged']:,} test documents, "
        f"mean of {study['num_seeds']} first draws; in brackets the interval of the points above random "
        f"choice. {verdict}"
    )


def chosen(figures: Figures) -> list[str]:
    """Tell for each arm that chooses its labels what that saved, beside the same arm with labels drawn."""
    metrics, said = figures["sample_efficiency"], []
    for arm in metrics["arms"]:
        parsed = Arm.parse(arm)
        if not parsed.use.chooses_labels:
            continue
        drawn = str(parsed.using(parsed.use.drawn))
        above = by_arm(figures, "above", of=arm).get(drawn, {})
        better = [count for count, each in above.items() if each["difference_low"] > 0]
        if drawn not in metrics["arms"] or len(metrics["labels"]) < 2:
            continue
        if not better:
            said.append(
                f"{name_of(drawn)}: choosing labels clearly saves none; at no number of labels are there "
                "clearly fewer mistakes than with labels drawn at random."
            )
            continue
        needed = by_arm(figures, "labels_needed", of=drawn).get(arm, {})
        worth = [
            f"{count:,} chosen labels are worth {number_of_labels(needed[count])} drawn at random"
            for count in better
            if count in needed
        ]
        said.append(
            f"{name_of(drawn)}: with chosen labels there are clearly fewer mistakes at "
            f"{listed([f'{count:,}' for count in better])}" + (f"; {listed(worth)}." if worth else ".")
        )
    return said


def doubtful(study: Mapping[str, Any], trials: Sequence[Mapping[str, Any]]) -> str:
    """Tell how many labels `headstart doubt` doubts, and how good its list was in a trial."""
    said = (
        f"{study['num_doubted']:,} of {study['num_judged']:,} labels of training documents are in doubt: the "
        f"frozen features of {study['headstart']} and TF-IDF, learned from the other documents, confidently "
        "tell another class."
    )
    for trial in (each for each in trials if each["headstart"] == study["headstart"]):
        share = "none" if trial["precision"] is None else f"{trial['precision']:.0%}"
        said += (
            f" With {trial['flipped']:.0%} of the labels changed at random, {trial['num_doubted']:,} were in "
            f"doubt; {share} of these were changed ones, and of all changed ones {trial['recall']:.0%} were "
            "among them."
        )
    return said


def in_context(figures: Figures) -> list[str]:
    """Tell what the arms that train nothing were asked, and what could not be asked; empty without any."""
    if not (rows := in_context_rows(figures)) and not examples_left_out(figures):
        return []
    majority = figures["sample_efficiency"]["in_context"]["majority_error"]
    said = [
        "A language model was asked, and nothing trained: how likely it finds the words of each class behind "
        "a text, in the template zero_shot.template. Before the text it was shown labelled examples, as many "
        f"as the number of labels says. Always answering the largest class gets {majority:.1%} wrong."
    ]
    if rows and all(row["error_high"] >= majority for row in rows):
        said.append("None of them is clearly better than that.")
    return said + [
        f"{name_of(arm)} was not shown {int(count):,} examples: {reason}."
        for arm, reasons in examples_left_out(figures).items()
        for count, reason in sorted(reasons.items(), key=lambda each: int(each[0]))
    ]


def labels_left_out(figures: Figures) -> list[str]:
    """Numbers of labels that were asked for and could not be trained on; empty without any."""
    by_reason: dict[str, list[int]] = {}
    for count, reason in figures["sample_efficiency"].get("left_out", {}).items():
        by_reason.setdefault(reason, []).append(int(count))
    return [
        f"Left out: {_counts(sorted(counts))} labels, as {reason}." for reason, counts in by_reason.items()
    ]


def worse_than_fewer(figures: Figures) -> list[str]:
    """Points that are clearly worse than one of the same arm with fewer labels; empty without any."""
    found = figures["sample_efficiency"].get("worse_than_fewer", {})
    return [
        f"{name_of(arm)} is clearly worse with {int(count):,} labels than with {fewer:,}: trainings went "
        "wrong there, and comparisons and the labels saved leave this point out."
        for arm, worse in found.items()
        for count, fewer in worse.items()
    ]


def restarts(figures: Figures) -> list[str]:
    """Trainings of the label curve that began anew, and those that never took off; empty without any."""
    began, never = (_trainings(figures, name) for name in ("began_anew", "never_took_off"))
    said = []
    if began:
        said.append(f"These trainings {_LEARNED_NOTHING} and began anew at half the rates: {began}.")
    if never:
        said.append(
            f"These trainings {_LEARNED_NOTHING} to the end, and count in the curve all the same: {never}."
        )
    return said


def _trainings(figures: Figures, name: str) -> str:
    """The number of such trainings, by arm and number of labels."""
    metrics = figures["sample_efficiency"]
    parts = []
    for arm, by_count in by_arm(figures, name).items():
        members = len(metrics["head_starts"][arm])
        found = [
            f"{count:,} labels ({num} of {members * metrics['curve'][arm][str(count)]['num_seeds']})"
            for count, num in by_count.items()
        ]
        parts.append(f"{name_of(arm)} with {listed(found)}")
    return "; ".join(parts)


def never_predicted(figures: Figures) -> list[str]:
    """The classes that the classifier never answers; empty without any."""
    actual, predicted = ({row[key] for row in figures.confusion} for key in ("actual", "predicted"))
    never = sorted(shown_label(str(name)) for name in actual - predicted)
    return [f"Never predicted: {listed(never)}."] if never else []


def classifier_restarts(figures: Figures) -> list[str]:
    """The head starts whose classifier began anew, and whose never took off; empty without any."""
    trainings = {name: figures[f"finetune_classifier-{name}"] for name in figures.head_starts}
    began = [
        f"{name} ({'once' if each['restarts'] == 1 else str(each['restarts']) + ' times'})"
        for name, each in trainings.items()
        if each["restarts"]
    ]
    never = [name for name, each in trainings.items() if not each["took_off"]]
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
    """The head starts that read only a part of at least a hundredth of the documents."""
    shares = {
        name: figures[f"finetune_classifier-{name}"].get("cut_share", 0) for name in figures.head_starts
    }
    cut = [f"{name} ({share:.0%})" for name, share in shares.items() if share >= _WORTH_SAYING]
    if not cut:
        return []
    return [
        f"Of documents longer than max_tokens these head starts read the first and the last half of that "
        f"alone; so many training documents are longer: {listed(cut)}."
    ]


def attention(found: Mapping[str, Any]) -> str:
    """Explain the table and the texts of attention weights."""
    return (
        f"The words that attention pooling looked at most in {found['num_documents']:,} test documents, by "
        "how many times the weight that they would have if it looked at all alike; and some of the "
        "documents, where a deeper shade is more weight."
    )


def mixes(figures: Figures) -> list[str]:
    """How each classifier that mixes layers weighs them."""
    found = {name: figures[f"finetune_classifier-{name}"].get("mix") for name in figures.head_starts}
    return [
        f"The classifier of {name} learned to mix its layers, from the lowest, by "
        f"{listed([f'{weight:.2f}' for weight in mix['weights']])}, times {mix['factor']:.2f}."
        for name, mix in found.items()
        if mix is not None
    ]


def features_beside(figures: Figures, classifiers: Iterable[str]) -> list[str]:
    """Name those of these classifiers that read features of another head start."""
    found = {name: beside(figures, name) for name in classifiers}
    return [
        f"The classifier of {name} also reads the frozen features of {other}, which stay as they are where "
        "words are said to have moved its answer."
        for name, other in found.items()
        if other is not None
    ]


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
    metrics = figures["sample_efficiency"]
    over = f"{metrics['confidence']:.0%} bootstrap bands over test documents"
    if metrics["num_seeds"] == 1:
        return f"{over}; there is one seed, so they do not cover its spread"
    few = "; with so few seeds they are too narrow" if metrics["num_seeds"] < 5 else ""
    return f"{over} and {metrics['num_seeds']} seeds{few}"


def leakage(figures: Figures) -> str:
    """One paragraph."""
    found, metrics = figures["find_leaks"], figures["evaluate"]
    if not found["num_leaked"]:
        return f"None of {found['num_test_documents']:,}."
    where = ", ".join(
        f"{name} {each['num_leaked']:,}" for name, each in found["sources"].items() if each["num_leaked"]
    )
    said = (
        f"{found['num_leaked']:,} of {found['num_test_documents']:,} ({found['share']:.1%}), "
        f"{found['num_exact']:,} word for word, {found['num_near']:,} nearly ({where})."
    )
    judged = metrics.get("leakage", {})  # without labels there is no error to judge
    if judged.get("action") == "drop":
        return f"{said} All figures leave them out."
    if "error_without" in judged:
        said += f" Without them the classifier's error is {metrics['leakage']['error_without']:.1%}."
    return said


def shown_label(name: str) -> str:
    """A label, in quotes where blanks at its ends would not be seen."""
    return repr(name) if name != name.strip(" \t") else name


def remarks(figures: Figures) -> list[str]:
    """What to know of the labelled data; empty if there is nothing."""
    found = list(figures["prepare-target"].get("remarks", ()))
    skipped = figures["prepare-target"]["skipped"]
    rows = [f"{count:,} ({reason.replace('_', ' ')})" for reason, count in skipped.items() if count]
    if rows and figures["prepare-target"].get("num_classes"):
        found.append(f"rows left out: {', '.join(rows)}")
    return [f"About the data: {'; '.join(found)}."] if found else []


def left_out(figures: Figures) -> str:
    """The rows that `prepare` left out and repaired, and what it remarked."""

    def rows(what: str) -> str:
        found = [
            f"{corpus}: {count:,} ({reason.replace('_', ' ')})"
            for corpus in figures.corpora
            for reason, count in figures[f"prepare-{corpus}"][what].items()
            if count
        ]
        return "; ".join(found) or "nothing"

    remarks = [
        f" {corpus[0].upper()}{corpus[1:]}: {remark}."
        for corpus in figures.corpora
        for remark in figures[f"prepare-{corpus}"].get("remarks", ())
    ]
    return f"Rows left out: {rows('skipped')}. Repaired: {rows('repaired')}.{''.join(remarks)}"


def search(figures: Figures) -> str:
    metrics = figures["tune"]
    best = metrics["best"]
    states = ", ".join(f"{count} {state}" for state, count in metrics["states"].items() if count)
    what = metrics["stage"] + ("" if metrics["labels"] is None else f" with {metrics['labels']:,} labels")
    return (
        f"{metrics['num_trials']} trials of {what} ({states}). "
        f"The best, trial {best['trial']}: {metrics['measure']} {best['value']:.4f}, on validation text."
    )


def ablations(figures: Figures) -> str:
    metrics = figures["ablate"]
    return (
        f"Each trick switched off alone; seeds: {metrics['num_seeds']}; classifiers of "
        f"{metrics['labels']:,} labels. If the interval lies above 0, the trick was worth having here."
    )


def anatomy(study: Mapping[str, Any]) -> str:
    """Explain what the measures of the layers mean, and of how much text they are."""
    return (
        f"the features of {study['num_words']:,} words in up to 30 contexts each, and of "
        f"{study['num_sentences']:,} sentences, by layer, with two standard errors on either side. The less "
        "a word is like itself in two contexts, and the less of its features one direction explains, the "
        "more of the context is in them. Where random words are alike, all features point one way."
    )


def translation(pair: Mapping[str, Any]) -> str:
    """A text and what a translator made of it."""
    source, made = ("".join(pair[name]).strip() for name in ("source", "translation"))
    known = "" if pair["reference"] is None else f" The translation in the corpus: “{pair['reference']}”."
    return f"“{source}” became “{made}”.{known}"


def contexts(example: Mapping[str, Any]) -> str:
    """Which word is shown, by which layer, and how far its two groups are apart."""
    apart = (
        f"two contexts of one group have a mean cosine of {example['within']:.2f}, of different groups "
        f"{example['between']:.2f}"
        if example["between"] is not None
        else f"they fall into no two groups; their mean cosine is {example['within']:.2f}"
    )
    return (
        f"“{example['word']}” in {len(example['points'])} contexts, by the features of layer "
        f"{example['layer']}: {apart}."
    )
