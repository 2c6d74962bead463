"""Token ids of imported tokenizers beside those of `transformers`, on translated messages in many scripts.

Texts are this machine's translations of programs' messages (`*.mo` below `--locales`), of every language
equally many. For WordPiece the reference is the reference code of BERT, which `transformers` carries along;
the others are the library that writes such files. WordPiece is read from a folder that is given, byte pairs
of both kinds are trained here.

    PYTHONPATH=.:.peers python benchmarks/contestants/parity_tokenizers.py FOLDER
"""

from __future__ import annotations

import argparse
import gettext
import itertools
import json
import tempfile
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from pipeline.corpus.imported_tokenizer import import_tokenizer
from pipeline.corpus.settings import ImportedTokenizer as Settings
from pipeline.corpus.tokenizer import Tokenizer

NUM_TEXTS = 10_000
Encode = Callable[[str], list[int]]


def translations(locales: Path) -> list[str]:
    """Return up to `NUM_TEXTS` different messages, of all languages in turn."""
    by_language: dict[str, set[str]] = defaultdict(set)
    for file in sorted(locales.glob("*/LC_MESSAGES/*.mo")):
        try:
            with file.open("rb") as opened:
                catalog: dict[Any, str] = vars(gettext.GNUTranslations(opened))["_catalog"]
        except (UnicodeDecodeError, IndexError):  # a catalog with a damaged header
            continue
        by_language[file.parts[-3]] |= {text for key, text in catalog.items() if key and text.strip()}
    in_turn = itertools.chain.from_iterable(itertools.zip_longest(*map(sorted, by_language.values())))
    return list(dict.fromkeys(text for text in in_turn if text))[:NUM_TEXTS]


def scripts(texts: Sequence[str]) -> dict[str, int]:
    """Return how many texts have a letter of each script, by the first word of its Unicode name."""
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update({unicodedata.name(letter, "?").split()[0] for letter in text if letter.isalpha()})
    return {script: count for script, count in counts.most_common() if count >= 10}


def imported(path: Path) -> Tokenizer:
    return import_tokenizer(Settings(kind="imported", file=str(path), threads=2), "tokenizers.theirs")


def num_different(ours: Tokenizer, theirs: Encode, texts: Sequence[str]) -> int:
    return sum(
        tokens[1:-1].tolist() != theirs(text)
        for tokens, text in zip(ours.encode_batch(texts, 2), texts, strict=True)
    )


def wordpieces(folder: Path, into: Path, texts: Sequence[str]) -> dict[str, int]:
    """Compare a `tokenizer.json`, and a `vocab.txt` of the same pieces, with BERT's reference code."""
    from transformers.models.bert.tokenization_bert_legacy import BertTokenizerLegacy

    newer = imported(folder)
    (into / "vocab.txt").write_text("\n".join(newer.vocabulary) + "\n", encoding="utf-8")
    described = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))["normalizer"]
    lowercase = bool(described["lowercase"])
    (into / "tokenizer_config.json").write_text(json.dumps({"do_lower_case": lowercase}))
    reference = BertTokenizerLegacy(str(into / "vocab.txt"), do_lower_case=lowercase)

    def theirs(text: str) -> list[int]:
        return list(reference.convert_tokens_to_ids(reference.tokenize(text)))

    return {
        "WordPiece, tokenizer.json": num_different(newer, theirs, texts),
        "WordPiece, vocab.txt": num_different(imported(into), theirs, texts),
    }


def byte_pairs(into: Path, texts: Sequence[str], *, of_letters: bool) -> dict[str, int]:
    """Train byte pairs as GPT-2 or GPT have them, and compare `vocab.json` and `merges.txt`."""
    import tokenizers
    import transformers

    made: Any
    if of_letters:
        made = tokenizers.CharBPETokenizer(lowercase=True, bert_normalizer=True)
        made.train_from_iterator(texts, vocab_size=4_000)
        reference = transformers.OpenAIGPTTokenizer
    else:
        made = tokenizers.ByteLevelBPETokenizer()
        made.train_from_iterator(texts, vocab_size=4_000, special_tokens=["<|endoftext|>"])
        reference = transformers.GPT2Tokenizer
    made.save_model(str(into))
    read = reference(vocab=str(into / "vocab.json"), merges=str(into / "merges.txt"))
    name = "GPT" if of_letters else "GPT-2"

    def theirs(text: str) -> list[int]:
        return list(read.encode(text, add_special_tokens=False))

    return {f"{name}, vocab.json and merges.txt": num_different(imported(into), theirs, texts)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("folder", type=Path, help="with the tokenizer.json of a BERT")
    parser.add_argument("--locales", type=Path, default=Path("/usr/share/locale"))
    arguments = parser.parse_args()
    texts = translations(arguments.locales)
    figures: dict[str, Any] = {"texts": len(texts), "texts with letters of a script": scripts(texts)}
    different: dict[str, int] = {}
    with tempfile.TemporaryDirectory() as folder:
        parts = [Path(folder) / str(number) for number in range(3)]
        for part in parts:
            part.mkdir()
        different |= wordpieces(arguments.folder, parts[0], texts)
        different |= byte_pairs(parts[1], texts, of_letters=False)
        different |= byte_pairs(parts[2], texts, of_letters=True)
    print(json.dumps(figures | {"texts with other ids": different}, ensure_ascii=False, indent=2))


if __name__ == "__main__":
    main()
