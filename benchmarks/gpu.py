"""Checks and measures headstart on a GPU, with torch alone: no Ray, MLflow or DVC.

    PYTHONPATH=. python benchmarks/gpu.py all --out reports/gpu --minutes 13 --tokens tokens.tar.xz

runs `check`, `resume`, `speed` and `imdb`, each within its share of the minutes. Without --tokens it leaves
out `imdb`. On SIGTERM, and when the minutes are over, it stops with whole figures: what was left out, and
why, is in the JSON, and it exits with 0 (with 1 if a part failed). Called again with the same --out, code
and machine, it continues with what is missing.

    PYTHONPATH=. python benchmarks/gpu.py PART --out reports/gpu

runs one part, in benchmarks/gpu_parts:

- `check`: masks, features, gradients and a short training of each family, beside the CPU's.
- `resume`: a run that is stopped and resumed ends bit for bit like an undisturbed one
  (`run.deterministic`).
- `speed`: training steps of AWD-LSTM, GPT and BERT, beside `fastai` and `transformers` where .peers has
  them (`make peers`), the rate of the fastest bfloat16 product, and the share of a step in which the GPU
  computes. One that fails is left out, with its message.
- `steps`: where the time of an AWD-LSTM's steps goes, as language model and as classifier; torch's profile
  of each is in OUT/profile.txt.
- `ptb --text FOLDER`: Penn Treebank by AWD-LSTM (Merity et al. 2017, section 5) with NT-ASGD. FOLDER has
  train.txt, validation.txt and test.txt, a sentence a line. Each call trains for `--minutes`, from where
  the last was, until 20 minutes.
- `imdb --tokens FOLDER|FILE`: the three trainings of one head start, and those of classifiers with few
  labels (three seeds); errors on the test documents. Each call trains for `--minutes`, from where the last
  was. `--stages` names fewer than the three; the models of the others are in OUT/imdb, by an earlier call.
  FOLDER is data/tokens of a project whose stage `encode` has run, with the settings used here: params.yaml,
  presets/imdb.yaml and benchmarks/gpu_imdb.yaml, or what `--settings` names in place of the last two.
- `both --tokens FOLDER|FILE --members OUT OUT`: the mean of the classifiers of several calls of `imdb`: of
  both directions, by `--headstart ulmfit` and `--headstart ulmfit_backward` with an OUT each. They can run
  side by side.

    PYTHONPATH=. python benchmarks/gpu.py pack --tokens data/tokens --out tokens.tar.xz --megabytes 48

packs the tokens that `imdb` needs into one FILE for a machine that takes few megabytes; general text that
does not fit is left out.

Besides torch it needs numpy, pydantic, psutil, safetensors, and `imdb` ruamel.yaml. Each part writes
OUT/PART.json after each family, contestant, step or training, so that what is stopped leaves what it has.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from pathlib import Path

import torch

from benchmarks.contestants._network import PRECISIONS
from benchmarks.gpu_parts.all_parts import Part, run_all
from benchmarks.gpu_parts.call import Call, Interruption
from benchmarks.gpu_parts.check import check
from benchmarks.gpu_parts.imdb import SETTINGS, STAGES, both, imdb
from benchmarks.gpu_parts.packed_tokens import pack
from benchmarks.gpu_parts.ptb import ptb
from benchmarks.gpu_parts.resume import resume
from benchmarks.gpu_parts.speed import speed
from benchmarks.gpu_parts.steps import steps
from pipeline.training.precision import set_arithmetic

PARTS: dict[str, Part] = {
    "check": check,
    "resume": resume,
    "speed": speed,
    "steps": steps,
    "ptb": ptb,
    "imdb": imdb,
    "both": both,
}
_MINUTES = {"all": 13.0, "ptb": 7.0, "imdb": 7.0}  # other parts take as long as they need


def main(given: list[str] | None = None) -> None:
    arguments = _arguments(given)
    if arguments.part == "pack":
        print(pack(arguments.tokens, arguments.out, arguments.megabytes))
        return
    arguments.out.mkdir(parents=True, exist_ok=True)
    set_arithmetic(None, deterministic=False)
    interruption = Interruption()
    interruption.listen()
    minutes = _MINUTES.get(arguments.part, math.inf) if arguments.minutes is None else arguments.minutes
    end = time.monotonic() + 60 * minutes
    call = Call(arguments.part, arguments, interruption, part_end=end, end=end)
    figures = run_all(call, PARTS) if arguments.part == "all" else PARTS[arguments.part](call)
    print(json.dumps(call.write(figures), indent=2))
    if arguments.part == "all" and any(outcome.get("failed") for outcome in figures.values()):
        raise SystemExit(1)


def _arguments(given: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("part", choices=["all", *PARTS, "pack"])
    parser.add_argument("--out", type=Path, required=True, help="a folder; for pack: a file")
    parser.add_argument("--device", type=torch.device, default=torch.device("cuda"))
    parser.add_argument("--text", type=Path, help="for ptb: the folder of the three splits")
    parser.add_argument("--tokens", type=Path, help="for imdb, both and pack: see above")
    parser.add_argument(
        "--megabytes", type=float, default=48.0, help="for pack: the most that the file may take"
    )
    parser.add_argument("--settings", type=Path, nargs="*", default=SETTINGS, help="for imdb")
    parser.add_argument("--headstart", default="ulmfit", help="for imdb")
    parser.add_argument(
        "--labels", type=int, nargs="*", default=[100, 500], help="for imdb: points of the label curve, too"
    )
    parser.add_argument(
        "--members", type=Path, nargs="*", default=[], help="for both: the folders --out of calls of imdb"
    )
    parser.add_argument(
        "--stages", nargs="*", choices=STAGES, default=STAGES, help="for imdb: those to train"
    )
    parser.add_argument(
        "--classifier-precision", choices=PRECISIONS, help="for imdb: of its classifiers; else as the others"
    )
    parser.add_argument("--minutes", type=float, help="of this call: by default 13 of all, 7 of ptb and imdb")
    parser.add_argument(
        "--peers", action=argparse.BooleanOptionalAction, default=True, help="for speed: the other libraries"
    )
    parser.add_argument("--rounds", type=int, help="for speed: by default 3, in all 1")
    parser.add_argument("--tiny", action="store_true", help="to try the script itself")
    arguments = parser.parse_args(given)
    _check(arguments)
    return arguments


def _check(arguments: argparse.Namespace) -> None:
    part = arguments.part
    if part != "pack" and arguments.device.type == "cuda" and not torch.cuda.is_available():
        raise SystemExit("torch sees no GPU here; --device cpu --tiny tries the script")
    if part == "ptb" and arguments.text is None:
        raise SystemExit("ptb needs --text, a folder with train.txt, validation.txt and test.txt")
    if part in ("imdb", "both", "pack") and arguments.tokens is None:
        raise SystemExit(f"{part} needs --tokens, the folder data/tokens of `encode` or a file of `pack`")


if __name__ == "__main__":
    main()
