"""Recipes: everything that determines a stage's outputs except the content of its inputs.

`headstart recipes`, the first stage, writes one file for each stage and each corpus, tokenizer or head start
that it runs for: the settings that it uses, with all layers applied, the code and packages that make its
numbers, and what a head start is related to. DVC watches that file, and the key of a run is the hash of its
recipe and of its inputs; so the two agree on what trains again.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import cache
from itertools import product
from pathlib import Path
from types import MappingProxyType
from typing import Any

from pipeline.corpus.distributions import text_versions
from pipeline.corpus.settings import ImportedTokenizer, PydocsSource
from pipeline.corpus.tokenizer import LIBRARY_MODULE
from pipeline.files.atomic import atomic_write_text
from pipeline.files.manifest import content_hash
from pipeline.identity.fingerprint import Fingerprint, fingerprint_of
from pipeline.identity.key import run_key
from pipeline.project import stages
from pipeline.project.checks import check
from pipeline.project.project import Project
from pipeline.project.related import code_of, related
from pipeline.project.relations import MODULES_OF_RELATIONS, RELATIONS
from pipeline.project.selection import head_starts_of, is_on, settings_of
from pipeline.terminal.redaction import redact_addresses

# Which of several settings of a head start holds, and how a trial varies them.
RESOLUTION = ("pipeline.project.headstarts", "pipeline.project.project")
_WATCHED = Path("sources/weights")  # whose content DVC watches

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Recipe:
    """Everything that determines a stage's outputs except the content of its inputs."""

    stage: str
    item: Mapping[str, str]  # such as {"headstart": "ulmfit"}
    settings: Mapping[str, Any]  # by dotted path
    related: Mapping[str, str]  # hash of what a head start needs beside its inputs, by relation
    code: Fingerprint

    @property
    def name(self) -> str:
        return "-".join([self.stage, *self.item.values()])

    @property
    def digest(self) -> str:
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()

    def to_json(self) -> str:
        return json.dumps({"digest": self.digest, **asdict(self)}, indent=1, sort_keys=True) + "\n"

    def key(self, inputs: Mapping[str, str]) -> str:
        """The key of the run that this recipe makes of inputs with these hashes."""
        content = {"item": dict(self.item), "settings": self.settings, "related": dict(self.related)}
        return run_key(self.stage, content, inputs, self.code.digest)


def recipe_of(stage: str, project: Project, item: Mapping[str, str]) -> Recipe:
    """The recipe of a stage for a corpus, tokenizer or head start.

    Raises ValueError for settings that a family refuses, and for weights that are not there.
    """
    return Recipe(
        stage=stage,
        item=item,
        settings=_without_credentials(settings_of(stage, project, item)),
        related=_related(stage, project, item),
        code=stage_fingerprint(stage, project, item),
    )


def _without_credentials(setting: Any) -> Any:
    """A recipe stands in git, and the signature of an address, which expires, makes no other corpus of it."""
    match setting:
        case str():
            return redact_addresses(setting)
        case Mapping():
            return {name: _without_credentials(value) for name, value in setting.items()}
        case list() | tuple():
            return [_without_credentials(value) for value in setting]
    return setting


def write_recipes(project: Project, out: Path) -> list[Path]:
    """Write the recipe of each stage, and what the links name, into `out`.

    Returns those that changed, among them those of a head start that is no longer trained, which are removed.
    A file that would say the same is not written again.

    Raises ValueError for settings that a stage would refuse, after hours perhaps, and as `recipe_of` does.
    """
    check(project)
    wanted, changed = {out / f"{name}.json": text for name, text in recipes_of(project).items()}, []
    for file, text in wanted.items():
        if not file.exists() or file.read_text(encoding="utf-8") != text:
            atomic_write_text(file, text)
            changed.append(file)
    for file in sorted(set(out.glob("*.json")) - wanted.keys()):
        file.unlink()
        changed.append(file)
    return changed


def recipes_of(project: Project) -> dict[str, str]:
    """The content of each recipe, by name, and of what lists the links.

    Raises ValueError as `write_recipes` does.
    """
    links = {name: json.dumps(links, indent=1) + "\n" for name, links in _links(project).items()}
    return {recipe.name: recipe.to_json() for recipe in _recipes(project)} | links


def _recipes(project: Project) -> Iterator[Recipe]:
    params = project.params
    items = {
        "corpus": params.corpus.names,
        "tokenizer": list(params.tokenizers),
        "headstart": params.run.headstarts,
    }
    for stage in stages.names():
        kind = stages.describe(stage).item
        for name in items[kind] if kind else [""]:
            yield recipe_of(stage, project, {kind: name} if kind else {})


# -------------------------------------------------------------------------------------------- links


def _links(project: Project) -> dict[str, dict[str, dict[str, str]]]:
    """The folders that each link names, below those that `choose_tokens` and `choose_features` are given."""
    tokens: dict[str, dict[str, str]] = {}
    features: dict[str, dict[str, str]] = {}
    for head_start in project.trained:
        name, tokenizer = head_start.name, head_start.tokenizer
        for link, corpus in (("general", head_start.objective.corpus), ("target", "target")):
            tokens[f"{name}/{link}"] = {"tokens": f"{corpus}/{tokenizer}", "tokenizer": tokenizer}
        features[name] = {}
        for relation, other in related(project, name, "finetune_classifier"):
            if relation.reads == "features":
                features[name] = {"features": other, "target_lm": other, "tokens": f"{other}/target.json"}
    return {"choose_tokens": tokens, "choose_features": features}


# ---------------------------------------------------------------------------------------- relations


def _related(stage: str, project: Project, item: Mapping[str, str]) -> dict[str, str]:
    """The hashes of what a head start needs beside its inputs: a file's content, a teacher's recipe."""
    found = {}
    if "headstart" in item:
        for relation, other in related(project, item["headstart"], stage):
            if relation.reads == "file":
                key = f"headstarts.{item['headstart']}.{relation.setting}"
                found[relation.setting] = _hash_of_file(key, other)
            elif relation.reads == "model":
                found[relation.setting] = recipe_of(stage, project, {"headstart": other}).digest
    return found


def _hash_of_file(key: str, path: str) -> str:
    """Raises ValueError if the file is missing."""
    if not Path(path).exists():
        raise ValueError(f"{key} is {path}, which does not exist; put the file or folder of weights there")
    return content_hash(Path(path))


def warn_of_unwatched(project: Project) -> None:
    """Log a warning for each file from elsewhere whose change DVC would not notice."""
    params = project.params
    files = {
        f"headstarts.{name}.{relation.setting}": getattr(params.headstarts[name], relation.setting)
        for name, relation in product(params.run.headstarts, RELATIONS)
        if relation.reads == "file"
    } | {
        f"tokenizers.{name}.file": each.file
        for name, each in params.tokenizers.items()
        if isinstance(each, ImportedTokenizer)
    }
    for key, path in files.items():
        if path is not None and not Path(os.path.abspath(path)).is_relative_to(_WATCHED.absolute()):
            log.warning(
                "%s is %s, not below %s, so DVC will not notice when it changes; copy or link it there",
                key, path, _WATCHED,
            )  # fmt: skip


# --------------------------------------------------------------------------------------------- code


def stage_fingerprint(
    stage: str, project: Project, item: Mapping[str, str] = MappingProxyType({})
) -> Fingerprint:
    """The code and packages of a stage, for one corpus or one head start where it reads one.

    Those of a stage that is switched off are none.

    Raises ValueError for an unknown family.
    """
    params, corpus = project.params, item.get("corpus", "")
    source = getattr(params.corpus, corpus).source if corpus in params.corpus.names else None
    if not is_on(stage, project):
        return Fingerprint(modules={}, packages={})
    names = head_starts_of(stage, project, item)
    modules, trained = code_of(project, names, stage)
    families = sorted({params.headstarts[name].family for name in trained})
    return fingerprint_of(
        f"pipeline.stages.{stage}",
        *(RESOLUTION if _reads_head_starts(stage) else ()),
        *modules,
        *([LIBRARY_MODULE] if _reads_imported(stage, project, item) else []),
        families=families,
        optional=MODULES_OF_RELATIONS,
        trains=stages.describe(stage).is_training,
        text=text_versions(source.part) if isinstance(source, PydocsSource) else None,
    )


def _reads_head_starts(stage: str) -> bool:
    """Whether the numbers of a stage depend on how a head start's settings are layered."""
    return any(path.startswith("headstarts") for path in stages.describe(stage).settings)


def _reads_imported(stage: str, project: Project, item: Mapping[str, str]) -> bool:
    """Whether a stage may load a tokenizer from elsewhere; `encode` has one recipe for all."""
    tokenizers = project.params.tokenizers
    loaded = {"train_tokenizer": [item.get("tokenizer", "")], "encode": list(tokenizers)}.get(stage, [])
    return any(tokenizers[name].kind == "imported" for name in loaded)


@cache
def trials_digest(family: str | None) -> str:
    """The digest of the code and packages that make the outcome of a sweep's trial, by its family.

    The figures that a sweep draws from its trials are not in it. Sweeps share it, as they share outcomes.
    """
    parts = ("pipeline.stages._points", "pipeline.stages._search_jobs", *RESOLUTION)
    return fingerprint_of(*parts, families=[family] if family else [], trains=True).digest
