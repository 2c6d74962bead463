"""Documents a second that this project reads for a probe: tokenizer, network, and the mean over a text."""

from __future__ import annotations

import numpy as np
import torch

from benchmarks.contestants._documents import parser, texts
from benchmarks.contestants._network import PRECISIONS
from benchmarks.contestants._timing import peak_megabytes, prepare, seconds_of, tell
from models.family import lookup
from pipeline.corpus.imported_tokenizer import import_tokenizer
from pipeline.corpus.settings import ImportedTokenizer
from pipeline.distributed.worker import prepare_torch
from pipeline.evaluation.probe import Reading, pooled_features
from pipeline.evaluation.settings import Probe
from pipeline.training.checkpoint import tensors_under
from pipeline.training.foreign_weights import read_network

given = parser()
given.add_argument("--precision", choices=PRECISIONS, required=True)
arguments = given.parse_args()

prepare()
num_threads = torch.get_num_threads()
prepare_torch(num_threads)
documents = texts(arguments.texts)
tokenizer = import_tokenizer(
    ImportedTokenizer(kind="imported", file=str(arguments.weights), threads=num_threads), "tokenizers.theirs"
)
network = read_network(arguments.weights)
family = lookup(network.family)
encoder = family.build(family.config(**network.config), network.vocab_size)
encoder.load_state_dict(tensors_under(network.tensors, "encoder."))
reading = Reading(
    direction="forward",
    max_tokens=arguments.longest,
    bptt=arguments.longest,
    pad_id=tokenizer.pad_id,
    special_ids=frozenset((tokenizer.pad_id, tokenizer.bos_id, tokenizer.eos_id)),
)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
encoder.to(device)
probe = Probe(layers=[-1], combine="concat", pooling=["mean"])
same = np.ones(tokenizer.vocab_size)


def read() -> None:
    tokens = tokenizer.encode_batch(documents, num_threads)
    pooled_features(encoder, tokens, probe, reading, same, device, PRECISIONS[arguments.precision])


tell(documents_per_second=len(documents) / seconds_of(read, 1), peak_megabytes=peak_megabytes())
