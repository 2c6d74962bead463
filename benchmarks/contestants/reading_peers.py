"""Documents a second that other libraries read, with the mean over a text's tokens.

- `sentence`: `encode` of sentence-transformers, as it is.
- `pipeline`: feature extraction by a pipeline of transformers, as it is: a text at a time.
- `rows`: tokenizer and model of transformers in a plain loop, 32 texts at a time in the order given.
"""

from __future__ import annotations

from typing import Any

import torch

from benchmarks.contestants._documents import parser, texts
from benchmarks.contestants._timing import peak_megabytes, prepare, seconds_of, tell

given = parser()
given.add_argument("--library", choices=["sentence", "pipeline", "rows"], required=True)
arguments = given.parse_args()

prepare()
documents, folder, longest = texts(arguments.texts), str(arguments.weights), arguments.longest
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
network: Any
if arguments.library == "sentence":
    from sentence_transformers import SentenceTransformer

    network = SentenceTransformer(folder, device=str(device))
    network.max_seq_length = longest

    def read() -> None:
        network.encode(documents)

elif arguments.library == "pipeline":
    import transformers

    network = transformers.pipeline("feature-extraction", model=folder, device=device)

    def read() -> None:
        for features in network(
            documents, return_tensors=True, tokenize_kwargs={"truncation": True, "max_length": longest}
        ):
            features[0].mean(0)

else:
    import transformers

    tokenizer: Any = transformers.AutoTokenizer.from_pretrained(folder)
    network = transformers.AutoModel.from_pretrained(folder).to(device).eval()

    @torch.no_grad()
    def read() -> None:
        for start in range(0, len(documents), 32):
            rows = tokenizer(
                documents[start : start + 32], padding=True, truncation=True, max_length=longest,
                return_tensors="pt",
            ).to(device)  # fmt: skip
            mask = rows["attention_mask"][:, :, None]
            (network(**rows).last_hidden_state * mask).sum(1) / mask.sum(1)


tell(documents_per_second=len(documents) / seconds_of(read, 1), peak_megabytes=peak_megabytes())
