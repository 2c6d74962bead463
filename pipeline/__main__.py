"""The command line: the stages, and the commands around them.

The flags of stages come from `pipeline/project/stages.py`, so that asking for help imports no stage.
"""

from __future__ import annotations

import inspect
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from pipeline.machine.openmp import limit_spinning
from pipeline.project import stages

if TYPE_CHECKING:
    from pipeline.project.project import Project

_LARGEST_SEED = 2**63 - 1  # that torch and numpy both take

app = typer.Typer(
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
    help="From raw text to an evaluated classifier. `dvc repro` runs the stages.",
)


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"headstart {version('headstart')}")
        raise typer.Exit


RECIPES = Path("reports/recipes")  # as in dvc.yaml
ParamsFile = Annotated[Path, typer.Option("--params", help="Settings.")]


def _project(params: Path) -> Project:
    """Load the project that a command is about. Raises ValueError naming each offending key."""
    from pipeline.project.project import Project

    return Project.load(params)


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option("--version", help="Print the version, and no more.", is_eager=True, callback=_version),
    ] = False,
) -> None:
    pass


def _stage_command(name: str, runs_bare: bool) -> Callable[..., None]:
    """A command for a stage, with the flags of its `run`. One that `runs_bare` takes all of them or none."""
    flags: dict[str, type] = {**stages.describe(name).flags, "metrics": Path}
    flags |= {"curve": Path} if stages.describe(name).kind == "trains" else {}

    def invoke(markdown: bool = False, compare: str = "", **values: Any) -> None:
        if missing := [arg for arg in flags if values[arg] is None]:
            raise ValueError(f"{name} lacks --{missing[0].replace('_', '-')}; give all of its flags, or none")
        from pipeline.execution.stage_call import StageCall
        from pipeline.execution.stage_command import run_stage_command

        arguments = {flag: values[flag] for flag in stages.describe(name).flags}
        call = StageCall(name, arguments, values["metrics"], values.get("curve"), values["recipe"])
        run_stage_command(call, values["params"])
        if name == "report" and "DVC_STAGE" not in os.environ:  # by hand, after whatever stages there were
            from pipeline.execution.stale_report import mark_changed_recipes

            mark_changed_recipes(Path.cwd(), values["params"] or Path("params.yaml"))

    option = typer.Option(show_default="as in dvc.yaml") if runs_bare else typer.Option()
    default = {"default": None} if runs_bare else {}
    own = [_parameter(arg, kind, option, **default) for arg, kind in flags.items()]
    by_dvc = typer.Option(help="File by which DVC knows the stage's settings, code and packages.")
    parameters = [
        *own,
        _parameter("recipe", Path | None, by_dvc, None),  # type: ignore[arg-type]  # a union is no type
        _parameter("params", Path, typer.Option(), Path("params.yaml")),
    ]
    if name == "report":
        # Eager: it ends the command before the flags of the stage are asked for.
        only_print = typer.Option("--markdown", help="Print the summary, and no more.",
                                  is_eager=True, callback=_print_summary)  # fmt: skip
        parameters.append(_parameter("markdown", bool, only_print, False))
        compare = typer.Option("--compare", metavar="REVISION", is_eager=True, callback=_compare,
                               help="Compare the label curve with an earlier one.")  # fmt: skip
        parameters.append(_parameter("compare", str, compare, ""))
    invoke.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    invoke.__annotations__ = {each.name: each.annotation for each in parameters}
    return invoke


def _print_summary(wanted: bool) -> None:
    if not wanted:
        return
    file = Path("reports/summary.md")
    if not file.exists():
        raise ValueError(f"{file}: no such file; run `dvc repro` first")
    from pipeline.execution.stale_report import changed_recipes

    if stale := changed_recipes(Path.cwd(), Path("params.yaml")):
        typer.echo(f"**{stale}**\n")
    typer.echo(file.read_text(encoding="utf-8"), nl=False)
    raise typer.Exit


def _compare(revision: str) -> None:
    if not revision:
        return
    from pipeline.files.git import content_at
    from pipeline.report.compare import comparison, read_run

    def here(file: Path) -> str:
        if not file.exists():
            raise ValueError(f"{file}: no such file; run `dvc repro` first")
        return file.read_text(encoding="utf-8")

    def there(file: Path) -> str:
        return content_at(Path.cwd(), revision, file).decode()

    before = read_run(there, f"{revision}: ", "compare with a revision of this format")
    for line in comparison(read_run(here), before, revision):
        typer.echo(_shown(line))
    raise typer.Exit


def _parameter(
    name: str, kind: type, option: Any, default: Any = inspect.Parameter.empty
) -> inspect.Parameter:
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, option]
    )


def _add_stages(runs_bare: str | None) -> None:
    for name in stages.names():
        panel = "Stages (run by dvc repro)"
        command = _stage_command(name, name == runs_bare)
        app.command(name, help=stages.describe(name).title, rich_help_panel=panel)(command)


@app.command(rich_help_panel="Stages (run by dvc repro)")
def recipes(
    out: Annotated[Path, typer.Option(help="Folder; it gets a file for each stage and what it runs for.")],
    studies: Annotated[
        Path | None, typer.Option(help="Folder to make, as DVC wants it for the report: of `layers`.")
    ] = None,
    params: ParamsFile = Path("params.yaml"),
) -> None:
    """Write down what makes each stage's outputs: the settings that it uses, its code and its packages."""
    from pipeline.execution.own_code import check_runs_own_code
    from pipeline.execution.recipes import warn_of_unwatched, write_recipes

    check_runs_own_code(Path.cwd())
    if studies is not None:
        from pipeline.report.study_files import make_folder

        make_folder(studies)
    project = _project(params)
    for file in write_recipes(project, out):
        typer.echo(f"changed: {file}")
    if out == RECIPES and params == Path("params.yaml"):
        from pipeline.execution.stale_report import renew_changed_recipes

        renew_changed_recipes(Path.cwd(), params)
    warn_of_unwatched(project)


LinksFile = Annotated[Path, typer.Option("--recipe", help="File that lists the links.")]


@app.command("choose_tokens", rich_help_panel="Stages (run by dvc repro)")
def choose_tokens(
    recipe: LinksFile,
    tokens: Annotated[Path, typer.Option(help="Folder of token shards, by corpus and tokenizer.")],
    tokenizers: Annotated[Path, typer.Option(help="Folder of tokenizers.")],
    out: Annotated[Path, typer.Option(help="Folder; it gets a link per head start and corpus.")],
) -> None:
    """Write down which tokens each head start reads."""
    from pipeline.artifacts.links import write_links

    write_links(recipe, {"tokens": tokens, "tokenizer": tokenizers}, out)


@app.command("choose_features", rich_help_panel="Stages (run by dvc repro)")
def choose_features(
    recipe: LinksFile,
    features: Annotated[Path, typer.Option(help="Folder of features, by head start.")],
    target_lm: Annotated[Path, typer.Option("--target-lm", help="Folder of the models that made them.")],
    tokens: Annotated[Path, typer.Option(help="Folder of links to tokens, by head start.")],
    out: Annotated[Path, typer.Option(help="Folder; it gets a link per head start.")],
) -> None:
    """Write down which features of another head start each classifier reads beside its own."""
    from pipeline.artifacts.links import write_links

    write_links(recipe, {"features": features, "target_lm": target_lm, "tokens": tokens}, out)


@app.command()
def init(folder: Annotated[Path, typer.Argument(help="Folder of the new project.")]) -> None:
    """Lay out a project of your own: settings, stages, presets, DVC and git."""
    from pipeline.project.templates import make_project

    make_project(folder)
    typer.echo(
        f"made {folder}; now: cd {folder}, put your files into sources/target, say in mine.yaml which "
        "columns they have, `headstart use mine.yaml`, `headstart doctor`, `dvc repro`. DVC's experiments "
        "need a first commit: git add -A && git commit -m begun"
    )


@app.command("plots-page")
def plots_page() -> None:
    """Write the page with which `dvc plots show` needs no network; make and init do so, too."""
    from pipeline.project.plots_page import write_plots_page

    if not Path(".dvc").is_dir():
        raise ValueError(f"{Path.cwd()} is no DVC project: there is no .dvc; see `headstart init`")
    typer.echo(f"wrote {write_plots_page(Path.cwd()).relative_to(Path.cwd())}")


@app.command()
def up(
    host: Annotated[
        str, typer.Option(help="Address of this machine to listen on; any but 127.0.0.1 lets others in.")
    ] = "127.0.0.1",
) -> None:
    """Start one shared Ray with its dashboard, and one MLflow server."""
    from pipeline.distributed import services

    try:
        started = services.up(Path.cwd(), host)
    except RuntimeError as error:  # a server that did not come up, with the end of its log
        typer.secho(f"headstart: {error}", fg="red", err=True)
        raise typer.Exit(1) from error
    if host != services.HOST:
        typer.secho(
            f"headstart: anyone who reaches {host} can change what is in MLflow, which has no password. "
            "Ray's token is sent unencrypted and lets its holder run code as you. Restrict access with a "
            "firewall.",
            fg="yellow", err=True,
        )  # fmt: skip
    typer.echo(f"started: {', '.join(started)}" if started else "already up")
    status()


@app.command()
def down() -> None:
    """Stop what `up` started."""
    from pipeline.distributed import services

    stopped = services.down(Path.cwd())
    typer.echo(f"stopped: {', '.join(stopped)}" if stopped else "nothing was up")


@app.command()
def status() -> None:
    """Show what is running and where, and how to get the dashboard's token."""
    from pipeline.distributed import services

    running = services.status(Path.cwd())
    for name in services.STARTERS:
        service = running.get(name)
        where = f"{service.dashboard}  (pid {service.pid}, log {service.log})" if service else "not running"
        typer.echo(f"{name:7} {where}")
    if "ray" in running:
        typer.echo(f"        the dashboard requires a token; print it with: {services.TOKEN_COMMAND}")


@app.command()
def sync() -> None:
    """Send MLflow what it missed while it was away, without running a stage."""
    from pipeline import tracking
    from pipeline.execution.under_dvc import project_root

    delivered = tracking.deliver(project_root(Path.cwd()))
    if not delivered.sent and not delivered.kept and not delivered.outage:
        typer.echo(f"MLflow at {delivered.store} has everything")
    for name in delivered.sent:
        typer.echo(f"delivered: {name}, to MLflow at {delivered.store}")
    for name, reason in delivered.kept:
        typer.secho(f"kept: {name}; {reason}", fg="red", err=True)
    if delivered.outage and not delivered.kept:
        nothing_kept = f"nothing is kept here for MLflow at {delivered.store}"
        typer.secho(f"{nothing_kept}; {delivered.outage}", fg="red", err=True)
    if delivered.kept or delivered.outage:
        raise typer.Exit(1)


@app.command()
def doctor(
    params: ParamsFile = Path("params.yaml"),
    as_json: Annotated[bool, typer.Option("--json", help="For machines.")] = False,
) -> None:
    """Try everything that long work will need: cluster, storage, MLflow, versions, memory; advise."""
    from pipeline.doctor import examine
    from pipeline.doctor.findings import as_table, to_json
    from pipeline.execution.own_code import check_runs_own_code
    from pipeline.terminal.progress import busy

    with busy("doctor"):
        check_runs_own_code(Path.cwd())
        findings = examine(_project(params), Path.cwd())
    typer.echo(to_json(findings) if as_json else as_table(findings))
    _end(int(any(finding.state == "failure" for finding in findings)))


def _end(code: int) -> None:
    """Exit, even if threads of this process hang."""
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    if any(not thread.daemon for thread in threading.enumerate() if thread is not threading.main_thread()):
        os._exit(code)
    raise typer.Exit(code)


def _preset_names(begun: str) -> list[str]:
    from pipeline.project.presets import names

    return [name for name in names() if name.startswith(begun)]


@app.command()
def use(
    overlay: Annotated[
        str,
        typer.Argument(
            help="A preset's name, or a YAML file with keys of params.yaml.", autocompletion=_preset_names
        ),
    ],
    params: Annotated[Path, typer.Option(help="The file to change.")] = Path("params.yaml"),
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the difference only.")] = False,
) -> None:
    """Lay a preset or a file over params.yaml, and show the difference."""
    from pipeline.project import presets

    without = presets.left_out(overlay, params)
    changes = presets.use(overlay, params, write=not dry_run)
    for key, before, after in changes:
        typer.echo(_shown(f"{key}: {presets.in_yaml(before)} -> {presets.in_yaml(after)}"))
    if not changes:
        typer.echo("no difference")
    if without:
        typer.echo(_shown(f"left out, as these settings have nothing of that name: {', '.join(without)}"))
    if changes and not dry_run and params == Path("params.yaml"):
        from pipeline.execution.stale_report import mark_changed_recipes

        mark_changed_recipes(Path.cwd(), params)
        _write_recipes(params)


def _write_recipes(params: Path) -> None:
    """Write the recipes where dvc.yaml wants them, so that `dvc status` tells what these settings change."""
    from pipeline.execution.recipes import write_recipes

    if not Path("dvc.yaml").exists():
        return
    RECIPES.mkdir(parents=True, exist_ok=True)
    try:
        changed = write_recipes(_project(params), RECIPES)
        typer.echo(f"changed recipes: {', '.join(file.stem for file in changed) or 'none'}")
    except ValueError as error:
        typer.echo(f"`dvc repro` would refuse these settings: {error}", err=True)


@app.command()
def settings(
    section: Annotated[
        str | None, typer.Argument(help="Such as run, corpus.target, headstarts.ulmfit.finetune_lm.")
    ] = None,
    params: ParamsFile = Path("params.yaml"),
    every: Annotated[bool, typer.Option("--all", help="Every setting of every section.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Every setting, or those of SECTION.")] = False,
) -> None:
    """List the sections and what is not the default, or show all settings of one and what they mean."""
    from pipeline.project import effective

    project, values = _project(params), effective.FileValues(params)
    if section is None and not every and not as_json:
        typer.echo(effective.overview(project, values))
        typer.echo(
            "\n`headstart settings SECTION` shows all settings of a section, such as finetune_lm or "
            f"headstarts.{project.params.run.headstarts[0]}, and what they mean; --all shows every section."
        )
        return
    settings = effective.effective(project, values, section)
    if as_json:
        typer.echo(effective.to_json(settings))
        return
    is_brief = section == "headstarts" and not every
    typer.echo(effective.as_tables(effective.brief(settings) if is_brief else settings))
    if is_brief:
        typer.echo(
            "\nA head start takes what is not shown here from the sections `pretrain_lm`, `finetune_lm`, "
            "`finetune_classifier` and `probe`; `headstart settings headstarts.NAME` shows all of one."
        )


@app.command("lr-find")
def lr_find(
    stage: Annotated[str, typer.Argument(help="pretrain_lm, finetune_lm or finetune_classifier.")],
    headstart: Annotated[str | None, typer.Option(help="A name in `headstarts`; the first one.")] = None,
    lowest: Annotated[float, typer.Option(help="The first rate.")] = 1e-5,
    highest: Annotated[float, typer.Option(help="The last rate.")] = 1.0,
    steps: Annotated[int, typer.Option(help="Optimizer steps.")] = 100,
    out: Annotated[Path, typer.Option(help="Folder for the curve.")] = Path("reports/lr_find"),
    params: ParamsFile = Path("params.yaml"),
) -> None:
    """Range test: train with rising rates, draw loss against rate, suggest one."""
    from pipeline.execution.lr_find import find

    found = find(_project(params), stage, headstart, lowest, highest, steps, out)
    typer.echo(f"suggested headstarts.{found.headstart}.{stage}.optimizer.lr: {found.suggestion:.2g}")
    typer.echo(f"curve: {found.csv} and {found.picture}")


@app.command()
def layers(
    headstart: Annotated[str, typer.Argument(help="A name in `headstarts`.")],
    general: Annotated[bool, typer.Option("--general", help="The model before its fine-tuning.")] = False,
    labels: Annotated[int, typer.Option(min=2, help="Training documents of each probe.")] = 1000,
    out: Annotated[Path, typer.Option(help="Folder for the table.")] = Path("reports/studies"),
    params: ParamsFile = Path("params.yaml"),
) -> None:
    """Compare probes on each layer of a head start, and on several layers together."""
    from pipeline.execution.layers import compare
    from pipeline.report.sections.studies import layers as section
    from pipeline.report.terminal import show

    found = compare(_project(params), headstart, "general_lm" if general else "target_lm", labels, out)
    show(section.blocks(found.study))
    typer.echo(f"{found.file}; `dvc repro` puts it on the page")


@app.command()
def align(
    headstart: Annotated[str, typer.Argument(help="A name in `headstarts`, of a translator.")],
    text: Annotated[
        list[str] | None,
        typer.Option(help="A text to translate, repeatable; for the page only some validation texts are."),
    ] = None,
    pairs: Annotated[int, typer.Option(min=1, help="Validation texts to translate.")] = 4,
    out: Annotated[Path, typer.Option(help="Folder for the alignments.")] = Path("reports/studies"),
    params: ParamsFile = Path("params.yaml"),
) -> None:
    """Translate with a head start that learned to (McCann et al. 2017); show where its attention looked."""
    from pipeline.execution.alignment import align as align_texts
    from pipeline.report.sections.studies import alignments
    from pipeline.report.terminal import show
    from pipeline.terminal.progress import busy

    with busy("align"):
        found = align_texts(_project(params), headstart, text or (), pairs, out)
    show(alignments.blocks(found.study))
    if found.file is not None:
        typer.echo(f"{found.file}; `dvc repro` puts it on the page")


@app.command()
def anatomy(
    headstart: Annotated[str, typer.Argument(help="A name in `headstarts`.")],
    general: Annotated[bool, typer.Option("--general", help="The model before its fine-tuning.")] = False,
    word: Annotated[
        list[str] | None, typer.Option(help="A word to show in its contexts, repeatable; one that is found.")
    ] = None,
    documents: Annotated[int, typer.Option(min=10, help="Documents to read.")] = 2000,
    out: Annotated[Path, typer.Option(help="Folder for the table.")] = Path("reports/studies"),
    params: ParamsFile = Path("params.yaml"),
) -> None:
    """Measure how contextual and how anisotropic each layer of a head start is (Ethayarajh 2019)."""
    from pipeline.execution.anatomy import dissect
    from pipeline.execution.opened_head_start import Which
    from pipeline.report.sections.studies import anatomy as section
    from pipeline.report.terminal import show
    from pipeline.terminal.progress import busy

    with busy("anatomy"):
        which: Which = "general_lm" if general else "target_lm"
        found = dissect(_project(params), headstart, which, word or (), documents, out)
    show(section.blocks(found.study))
    typer.echo(f"{found.file}; `dvc repro` puts it on the page")


@app.command("zero-shot")
def zero_shot(
    headstart: Annotated[str, typer.Argument(help="A name in `headstarts`.")],
    text: Annotated[str, typer.Argument(help="The text to classify.")],
    general: Annotated[bool, typer.Option("--general", help="The model before its fine-tuning.")] = False,
    template: Annotated[str | None, typer.Option(help="In place of zero_shot.template.")] = None,
    examples: Annotated[int, typer.Option(min=0, help="Labelled texts to show before it.")] = 0,
    seed: Annotated[
        int, typer.Option(min=0, max=_LARGEST_SEED, help="The same seed shows the same examples.")
    ] = 1,
    params: ParamsFile = Path("params.yaml"),
) -> None:
    """Ask a language model for the class of a text, by how likely it finds words behind it."""
    from pipeline.execution.opened_head_start import Which
    from pipeline.execution.zero_shot import ask

    which: Which = "general_lm" if general else "target_lm"
    for name, probability in ask(_project(params), headstart, which, text, template, examples, seed):
        typer.echo(f"{probability:6.1%}  {_shown(name)}")


@app.command()
def generate(
    headstart: Annotated[str, typer.Argument(help="A name in `headstarts`.")],
    text: Annotated[str, typer.Argument(help="The beginning of a document.")] = "",
    general: Annotated[bool, typer.Option("--general", help="The model before its fine-tuning.")] = False,
    tokens: Annotated[int, typer.Option(min=1, help="Most tokens to add.")] = 60,
    samples: Annotated[int, typer.Option(min=1, help="Continuations, one a line.")] = 1,
    temperature: Annotated[float, typer.Option(help="Below 1: likelier words; 0: the likeliest.")] = 1.0,
    top_k: Annotated[int, typer.Option(help="Draw from this many words at most; 0: from all.")] = 0,
    top_p: Annotated[float, typer.Option(help="Draw from the words that make up this probability.")] = 1.0,
    seed: Annotated[
        int, typer.Option(min=0, max=_LARGEST_SEED, help="The same seed draws the same text.")
    ] = 1,
    params: ParamsFile = Path("params.yaml"),
) -> None:
    """Continue a text by the language model of a head start that predicts the next token."""
    from pipeline.execution.continue_text import continue_text
    from pipeline.execution.opened_head_start import Which
    from pipeline.inference.generate import Sampling

    sampling = Sampling(temperature, top_k, top_p)
    which: Which = "general_lm" if general else "target_lm"
    texts = continue_text(_project(params), headstart, which, text, tokens, samples, sampling, seed)
    for found in texts:
        typer.echo(_shown(found.replace("\n", " ")).encode("utf-8"))


@app.command()
def plan(
    hours: Annotated[float, typer.Option(min=1e-3, help="Of wall-clock time.")],
    gpus: Annotated[int, typer.Option(min=0, help="GPUs of that time.")] = 0,
    cores: Annotated[int, typer.Option(min=0, help="CPU cores of that time, if no GPUs.")] = 0,
    teraflops: Annotated[
        float | None, typer.Option(min=1e-6, help="Of one device in training; default: as measured.")
    ] = None,
    price: Annotated[
        float | None, typer.Option(min=0.0, help="Of one device for an hour, in your currency.")
    ] = None,
    most_passes: Annotated[
        float | None,
        typer.Option(min=1e-3, help="Over the general text that there is; default: as the time allows."),
    ] = None,
) -> None:
    """Say what size and how many tokens a budget should have, and what loss, by `headstart scaling`."""
    from pipeline.execution.plan import answer
    from pipeline.report.sections import scaling
    from pipeline.report.terminal import show

    if bool(gpus) == bool(cores):
        raise ValueError("say what the hours are of: --gpus NUMBER, or --cores NUMBER")
    found = answer(hours, "gpu" if gpus else "core", gpus or cores, teraflops, most_passes)
    show(scaling.plan(found, price))


@app.command("import-fastai")
def import_fastai(
    weights: Annotated[Path, typer.Argument(help="The .pth of a language model on fastai's AWD_LSTM.")],
    vocabulary: Annotated[Path, typer.Argument(help="Its words: itos.pkl, or plain text, a word a line.")],
    headstart: Annotated[str, typer.Option(help="The head start that it becomes.")] = "ulmfit",
    params: ParamsFile = Path("params.yaml"),
    out: Annotated[Path | None, typer.Option(help="Folder; data/general_lm/HEADSTART.")] = None,
) -> None:
    """Import a fastai language model as the general one, in place of pretrain_lm."""
    from pipeline.weights.fastai import import_language_model

    folder = out or Path("data/general_lm") / headstart
    moved = import_language_model(
        weights, vocabulary, Path("data/tokenizers"), _project(params), headstart, folder
    )
    share = moved.num_found / moved.num_pieces
    typer.echo(
        f"{moved.num_found:,} of {moved.num_pieces:,} pieces ({share:.0%}) are among its {moved.num_words:,} "
        "words; the others start from the mean of all rows"
    )
    if out is None:
        typer.echo(
            f"now: dvc commit -f pretrain_lm@{headstart}, so that DVC takes it for that stage's output; the "
            "metrics and the curve of that stage stay those of its last training, in the report too"
        )


@app.command()
def export(
    headstart: Annotated[str, typer.Argument(help="A name in `headstarts`.")],
    to: Annotated[Path, typer.Option(help="Folder to write; it must not exist, or be empty.")],
    format: Annotated[
        Literal["transformers", "onnx"],
        typer.Option(help="A language model of the family bert or gpt; or the classifier as ONNX."),
    ] = "transformers",
    general: Annotated[
        bool, typer.Option("--general", help="The general language model, not that of the target text.")
    ] = False,
    int8: Annotated[bool, typer.Option("--int8", help="For onnx: weights in eight bits.")] = False,
    params: ParamsFile = Path("params.yaml"),
    out: Annotated[Path, typer.Option(help="For onnx: folder for its figures.")] = Path("reports/studies"),
) -> None:
    """Write a language model for Hugging Face's transformers, or a classifier as ONNX for onnxruntime."""
    if format == "onnx":
        if general:
            raise ValueError("--general is of a language model; as ONNX the classifier is exported")
        _export_onnx(_project(params), headstart, to, int8, out)
        return
    if int8:
        raise ValueError("--int8 goes with --format onnx alone")
    from pipeline.weights.export import export_network

    head_start = _project(params).head_start(headstart)
    model = Path("data/general_lm" if general else "data/target_lm") / headstart
    for difference in export_network(model, Path("data/tokenizers") / head_start.tokenizer, to):
        typer.echo(difference)
    typer.echo(f"wrote {to}")


def _export_onnx(project: Project, headstart: str, to: Path, int8: bool, out: Path) -> None:
    from pipeline.execution.export_onnx import export_onnx
    from pipeline.report.sections.studies import exported_forms
    from pipeline.report.terminal import show

    exported = export_onnx(project, headstart, to, int8=int8, out=out)
    show(exported_forms.blocks(exported.written.study))
    typer.echo(
        f"wrote {to} and {exported.written.file}. On made-up documents of all lengths no probability differs "
        f"by more than {exported.difference:.1g}"
    )


@app.command()
def gc(
    older_than: Annotated[
        float, typer.Option(help="Days. What was written since stays, whether anything refers to it or not.")
    ] = 14.0,
    yes: Annotated[bool, typer.Option("--yes", help="Remove it. Without this, only show.")] = False,
    thin: Annotated[
        bool, typer.Option("--thin", help="Leave finished runs their last checkpoint, trials their outcome.")
    ] = False,
    project: Annotated[
        list[Path] | None, typer.Option(help="Folder of another project on the same run.storage.")
    ] = None,
    params: ParamsFile = Path("params.yaml"),
) -> None:
    """Show which runs in run.storage nothing refers to; with --yes, remove them."""
    from pipeline.execution.under_dvc import project_root
    from pipeline.retention.gc import carry_out, make_plan, show
    from pipeline.terminal.sizes import readable

    storage = _project(params).params.run.storage
    plan = make_plan(project_root(Path.cwd()), storage, older_than, thin, project or [])
    show(plan)
    if yes:
        typer.echo(f"removed {readable(carry_out(plan))}")
    elif plan.removals:
        typer.echo("nothing was removed; `headstart gc --yes` does it")


@app.command()
def predict(
    text: Annotated[
        list[str] | None, typer.Argument(help="Texts; none reads --file, or standard input.")
    ] = None,
    model: Annotated[
        list[Path] | None, typer.Option(help="Exported classifier; several are averaged.")
    ] = None,
    file: Annotated[Path | None, typer.Option(help="Plain text, one document a line.")] = None,
    input: Annotated[
        list[str] | None,
        typer.Option(
            help="Files to label: parquet, CSV, NDJSON or text; a glob, an address, or - for standard input."
        ),
    ] = None,
    output: Annotated[
        Path, typer.Option(help="For --input: a parquet, CSV or NDJSON file; -: lines of JSON.")
    ] = Path("-"),
    text_column: Annotated[
        list[str] | None, typer.Option(help="For --input: the column of each text of a document.")
    ] = None,
    format: Annotated[
        Literal["auto", "parquet", "csv", "ndjson", "text"],
        typer.Option(help="Of --input; auto: by the ending, and text from standard input."),
    ] = "auto",
    keep: Annotated[
        list[str] | None, typer.Option(help="For --input: a column to repeat in the output, such as an id.")
    ] = None,
    words: Annotated[
        int, typer.Option(min=0, help="For --input: so many words of each text that moved its label most.")
    ] = 0,
    precision: Annotated[
        Literal["auto", "fp32", "bf16"], typer.Option(help="Of matrix products; auto: the fast one here.")
    ] = "auto",
    label_only: Annotated[
        bool, typer.Option("--label-only", help="Print the label alone, one a line.")
    ] = False,
    with_text: Annotated[bool, typer.Option("--with-text", help="Repeat each text in its object.")] = False,
    summary: Annotated[
        Path | None, typer.Option(help="For --input: file for what was seen, without text; see `drift`.")
    ] = None,
    most_wrong: Annotated[
        float | None,
        typer.Option(help="Say which labels are sure, so that at most this share of these is wrong."),
    ] = None,
    label_sets: Annotated[
        float | None,
        typer.Option(help="Say which labels it may be: this share of the sets holds the right one."),
    ] = None,
) -> None:
    """Print label and probabilities of texts, one JSON object a line; an empty text has no label.

    With --input, label the documents of files in bulk; a run that was stopped goes on where it was.
    """
    from pipeline.inference.thresholds import Guarantees

    models, guarantees = model or [Path("data/classifier")], Guarantees(most_wrong, label_sets)
    if input:
        if text or file or label_only:
            raise ValueError("with --input, give neither texts nor --file nor --label-only")
        from pipeline.execution.label_in_bulk import label_in_bulk
        from pipeline.inference.bulk_input import Request

        columns = tuple(text_column or ["text"])
        kept = tuple(keep or [])
        asked = Request(
            input, columns, models, format, kept, with_text, words, precision, guarantees, summary
        )
        label_in_bulk(asked, output)
        return
    if summary:
        raise ValueError("--summary goes with --input")
    if label_only and label_sets is not None:
        raise ValueError("--label-only prints no sets of labels; leave one of the two out")
    from pipeline.inference.predicted_lines import Form, predict_lines

    form: Form = "labels" if label_only else "json_with_text" if with_text else "json"
    for line in predict_lines(text or [], file, models, precision, form, guarantees):
        typer.echo(line.encode("utf-8"))  # as JSON is, whatever the terminal's encoding


@app.command()
def suggest(
    count: Annotated[int, typer.Option(min=1, help="Documents to choose.")] = 100,
    strategy: Annotated[
        Literal["random", "uncertainty", "margin", "core_set", "badge", "margin_core_set"],
        typer.Option(help="docs/labelling.md says what each takes, and what it saved."),
    ] = "badge",
    headstart: Annotated[
        str | None, typer.Option(help="Whose features say how alike documents are; default: the first one.")
    ] = None,
    model: Annotated[Path, typer.Option(help="The classifier that is asked.")] = Path("data/classifier"),
    out: Annotated[Path, typer.Option(help="The CSV to fill in; it must not exist.")] = Path("to_label.csv"),
    seed: Annotated[int, typer.Option(min=0, max=_LARGEST_SEED, help="Of what is drawn.")] = 1,
    simulate: Annotated[
        bool, typer.Option("--simulate", help="Try all strategies on documents whose labels are known.")
    ] = False,
    counts: Annotated[
        list[int] | None, typer.Option(help="For --simulate: numbers of labels, a round each.")
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="For --simulate: first draws.")] = 5,
    studies: Annotated[Path, typer.Option(help="For --simulate: folder for its figures.")] = Path(
        "reports/studies"
    ),
    params: ParamsFile = Path("params.yaml"),
) -> None:
    """Choose the unlabelled documents whose labels would help most; write them to a CSV to fill in."""
    if simulate:
        _simulate(_project(params), headstart, counts or [100, 200, 300, 400, 600, 800], seeds, studies)
        return
    from pipeline.execution.suggest import suggest as choose_documents

    found = choose_documents(_project(params), headstart, count, strategy, model, out, seed)
    spelling = ", ".join(
        name if name == written else f"{written} for {name}" for name, written in found.spelling.items()
    )
    typer.echo(
        f"wrote {found.num_chosen:,} of {found.num_unlabelled:,} unlabelled documents to {found.file}; "
        f"{found.num_known:,} were passed over, as labelled text has them. Fill in the labels "
        f"({_shown(spelling)}), and add the file to corpus.target.source.train"
    )


def _simulate(project: Project, headstart: str | None, counts: list[int], seeds: int, studies: Path) -> None:
    from pipeline.execution.suggest import try_ways
    from pipeline.report.sections.studies import choosing
    from pipeline.report.terminal import show

    trial = try_ways(project, headstart, counts, seeds, studies)
    show(choosing.blocks(trial.study))
    typer.echo(f"wrote {trial.file}; `dvc repro` puts it on the page")


@app.command()
def doubt(
    headstart: Annotated[
        str, typer.Argument(help="The head start whose frozen features, beside TF-IDF, judge the labels.")
    ],
    most: Annotated[int, typer.Option(min=1, help="Documents to list.")] = 200,
    folds: Annotated[int, typer.Option(min=2, help="A document is judged by the other folds.")] = 5,
    out: Annotated[Path, typer.Option(help="The CSV.")] = Path("doubtful_labels.csv"),
    flip: Annotated[
        float, typer.Option(min=0.0, max=0.9, help="A trial: change this share of labels, and count them.")
    ] = 0.0,
    seed: Annotated[int, typer.Option(min=0, max=_LARGEST_SEED, help="Of folds and of what is flipped.")] = 1,
    studies: Annotated[Path, typer.Option(help="Folder for the figures.")] = Path("reports/studies"),
    params: ParamsFile = Path("params.yaml"),
) -> None:
    """List training documents whose label looks wrong, by models that did not see it."""
    from pipeline.execution.doubt import doubt as list_doubts
    from pipeline.report.sections.studies import doubtful
    from pipeline.report.terminal import show

    found = list_doubts(_project(params), headstart, most, folds, flip, out, seed, studies)
    study = found.written.study
    if isinstance(study, doubtful.DoubtfulTrial):
        show([doubtful.in_short(study, [study])])
        typer.echo(f"wrote {found.written.file}")
    else:
        show([doubtful.in_short(study)])
        typer.echo(
            f"wrote {found.file} and {found.written.file}; `dvc repro` puts the most doubtful on the page"
        )


@app.command()
def drift(
    summary: Annotated[
        list[Path],
        typer.Argument(help="Written by `predict --summary` or `serve --summary`; several, one a day."),
    ],
    model: Annotated[Path, typer.Option(help="The classifier that saw it.")] = Path("data/classifier"),
    out: Annotated[Path, typer.Option(help="The picture: .svg, .png or .html.")] = Path("drift.svg"),
    level: Annotated[
        float, typer.Option(min=1e-12, max=0.5, help="Probability of any false alarm, of all comparisons.")
    ] = 0.01,
    check: Annotated[bool, typer.Option("--check", help="End with code 3 if anything moved.")] = False,
) -> None:
    """Say whether the documents that a classifier sees are still of the kind that it was trained on."""
    from pipeline.execution.drift import drift as compare
    from pipeline.report.drift import moved
    from pipeline.report.section import table
    from pipeline.report.terminal import show

    found = compare(summary, model, out, level)
    for name, measures in found.moved.items():
        show([table(moved(measures))], title=f"{name}: {found.num_documents[name]:,} documents")
    for name in found.empty:
        typer.echo(f"{_shown(name)}: no document was seen yet")
    typer.echo(
        f"wrote {found.picture}; if nothing moved, a false alarm has a probability of {level:g} at most"
    )
    if check and any(each.moved for measures in found.moved.values() for each in measures):
        raise typer.Exit(3)


@app.command()
def serve(
    model: Annotated[
        list[Path] | None, typer.Option(help="Exported classifier; several are averaged.")
    ] = None,
    host: Annotated[
        str, typer.Option(help="Address to listen on; others than this machine's need a token.")
    ] = ("127.0.0.1"),
    port: Annotated[int, typer.Option(min=1, max=65535)] = 8000,
    replicas: Annotated[int, typer.Option(min=1, help="Copies of the classifier, each with a CPU.")] = 1,
    token_file: Annotated[
        Path | None,
        typer.Option(
            help="File with the token that each request has to bring; or set HEADSTART_SERVE_TOKEN."
        ),
    ] = None,
    max_waiting: Annotated[
        int, typer.Option(min=1, help="Requests that may wait; further ones are answered 429.")
    ] = 256,
    max_texts: Annotated[int, typer.Option(min=1, help="Of a request; more are answered 413.")] = 256,
    max_characters: Annotated[
        int, typer.Option(min=1, help="Of a request's texts; more are answered 413.")
    ] = 1_000_000,
    precision: Annotated[
        Literal["auto", "fp32", "bf16"], typer.Option(help="Of matrix products; auto: the fast one here.")
    ] = "auto",
    summary: Annotated[
        str | None,
        typer.Option(help="File for what was seen, without text, such as seen-%Y-%m-%d.json: one a day."),
    ] = None,
) -> None:
    """Serve the classifier by HTTP on Ray Serve: JSON, a page to try it, health and Prometheus' metrics."""
    from pipeline.execution.serve import serve as serve_until_stopped
    from pipeline.inference.service import Limits

    models = model or [Path("data/classifier")]
    limits = Limits(texts=max_texts, characters=max_characters)
    serve_until_stopped(models, host, port, replicas, token_file, max_waiting, limits, precision, summary)


def _words_in_dvc(words: list[str]) -> list[str]:
    """The command of the stage that is called, as dvc.yaml has it; none if that has several of it."""
    if not words or words[0] not in stages.names():
        return []
    from pipeline.settings.loader import read_yaml

    file = Path("dvc.yaml")
    stage = read_yaml(file)["stages"].get(words[0], {}) if file.exists() else {}
    return str(stage["cmd"]).split()[1:] if stage and "matrix" not in stage else []


_ANYWHERE = ("init", "predict", "serve", "drift")  # commands that need no project


def _check_is_project(words: list[str]) -> None:
    """Raise ValueError for a command that needs a project, outside of one."""
    names = {
        command.name or command.callback.__name__ for command in app.registered_commands if command.callback
    }
    is_command = bool(words) and words[0] in names and not {"-h", "--help", "--params"} & {*words}
    is_project = any(map(os.path.exists, ("params.yaml", "dvc.yaml")))
    if is_command and words[0] not in _ANYWHERE and not is_project:
        raise ValueError(
            f"{Path.cwd()} is no headstart project: there is neither params.yaml nor dvc.yaml; go into one, "
            "or make one with `headstart init FOLDER`"
        )


def main() -> None:
    """The `headstart` command: a person's mistake is one message and exit code 2, never a traceback."""
    sys.excepthook = _print_traceback
    limit_spinning()
    try:
        words = sys.argv[1:]
        in_dvc = _words_in_dvc(words)
        _add_stages(words[0] if in_dvc else None)
        _check_is_project(words)
        app(in_dvc if in_dvc and len(words) == 1 else words)
    except ValueError as error:
        typer.secho(f"headstart: {_shown(str(error))}", fg="red", err=True)
        sys.exit(2)
    except OSError as error:
        from pipeline.storage.patience import what_to_do

        advice = what_to_do(error)
        if advice is None:  # a mistake of ours
            raise
        typer.secho(f"headstart: {error}; {advice}, and repeat the command", fg="red", err=True)
        sys.exit(2)


def _print_traceback(kind: type[BaseException], error: BaseException, trace: Any) -> None:
    import traceback

    sys.stderr.write(_shown("".join(traceback.format_exception(kind, error, trace))))


def _shown(text: str) -> str:
    from pipeline.terminal.redaction import printable

    return printable(text)


if __name__ == "__main__":
    main()
