"""Stage: documents -> token shards."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from pipeline.corpus import text_parts, tokens, vocabulary
from pipeline.corpus.document_files import INFO_FILE, read_documents, read_documents_info
from pipeline.corpus.tokenizer import Tokenizer
from pipeline.corpus.tokenizer_kinds import load_tokenizer
from pipeline.figures.corpora import EncodeFigures, TokenizedSize
from pipeline.files.atomic import atomic_folder
from pipeline.project.project import Project


def run(project: Project, *, documents: Path, tokenizer: Path, out: Path) -> EncodeFigures:
    """Encode every split of `documents` into the folder `out`; return sizes and the vocabulary report.

    Raises:
        ValueError: documents or tokenizer are missing or damaged.
    """
    info = read_documents_info(documents)
    pieces = load_tokenizer(tokenizer)
    threads = project.params.tokenizers[tokenizer.name].threads  # changes no token
    token_counts = np.zeros(pieces.vocab_size, dtype=np.int64)
    splits = {}
    with atomic_folder(out) as folder:
        for split, size in info.splits.items():
            shard = _encode_split(
                documents, split, info.num_texts, pieces, folder, token_counts, threads=threads
            )
            splits[split] = shard.info(size.num_words, size.num_bytes)
            if splits[split].num_documents != size.num_documents:
                raise ValueError(
                    f"{documents}: {split}.parquet holds {splits[split].num_documents:,} documents, "
                    f"{INFO_FILE} says {size.num_documents:,}; run the stage `prepare` again"
                )
        tokens.write_info(
            folder,
            tokens.TokensInfo(
                vocab_size=pieces.vocab_size,
                tokenizer_sha256=pieces.sha256,
                unk_id=pieces.unk_id,
                bos_id=pieces.bos_id,
                eos_id=pieces.eos_id,
                pad_id=pieces.pad_id,
                mask_id=pieces.mask_id,
                num_texts=info.num_texts,
                label_names=info.label_names,
                splits=splits,
            ),
            pieces.word_starts,
            pieces.word_parts,
        )
    num_words = sum(split.num_words for split in splits.values())
    num_bytes = sum(split.num_bytes for split in splits.values())
    return EncodeFigures(
        splits={
            split: TokenizedSize.model_validate(sizes, from_attributes=True)
            for split, sizes in splits.items()
        },
        vocabulary=vocabulary.report(token_counts, num_words, num_bytes, pieces),
    )


def _encode_split(
    documents: Path,
    split: str,
    num_texts: int,
    tokenizer: Tokenizer,
    folder: Path,
    token_counts: np.ndarray,
    *,
    threads: int,
) -> tokens.ShardWriter:
    """Encode a split row group by row group, and add its tokens to `token_counts`."""
    with tokens.ShardWriter(folder, split, tokenizer.vocab_size) as shard:
        for rows in read_documents(documents, split):
            encoded = text_parts.encoded(
                rows.texts, num_texts, lambda texts: tokenizer.encode_batch(texts, threads)
            )
            shard.append(encoded, rows.labels)
            token_counts += np.bincount(np.concatenate(encoded), minlength=len(token_counts))
    return shard
