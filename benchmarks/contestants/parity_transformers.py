"""Networks that `transformers` wrote, beside the same weights here: logits and hidden states of all layers.

Prints, as JSON, the largest difference by architecture: of small networks with random weights, and of the
folders that are given.

    PYTHONPATH=.:.peers python benchmarks/contestants/parity_transformers.py [FOLDER ...]
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from models.family import lookup
from pipeline.objectives.lookup import objective_of
from pipeline.training.foreign_weights import ForeignNetwork, read_network

ROWS, TOKENS = 3, 11


def small_models() -> dict[str, Any]:
    import transformers as hf

    bert = {
        "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 24,
        "vocab_size": 40, "max_position_embeddings": 20,
    }  # fmt: skip
    distilbert = {
        "dim": 16, "n_layers": 2, "n_heads": 4, "hidden_dim": 24, "vocab_size": 40,
        "max_position_embeddings": 20,
    }  # fmt: skip
    gpt = {"n_embd": 16, "n_layer": 2, "n_head": 4, "n_positions": 20, "vocab_size": 40}
    return {
        "bert": hf.BertForPreTraining(hf.BertConfig(**bert)),
        "bert without decoder": hf.BertModel(hf.BertConfig(**bert)),
        "bert without pooler": hf.BertForMaskedLM(hf.BertConfig(**bert)),
        "roberta": hf.RobertaForMaskedLM(hf.RobertaConfig(**bert, type_vocab_size=1)),
        "distilbert": hf.DistilBertForMaskedLM(hf.DistilBertConfig(**distilbert)),
        "gpt2": hf.GPT2LMHeadModel(hf.GPT2Config(**gpt)),
        "gpt": hf.OpenAIGPTLMHeadModel(hf.OpenAIGPTConfig(**gpt)),
    }


def shaken(model: Any) -> Any:
    """The model with weights that no two parts share, biases and norms included."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn(parameter.shape, generator=generator))
    return model.eval()


def built(network: ForeignNetwork) -> Any:
    """Our model with the weights of theirs; a decoder that theirs lacks is random."""
    family = lookup(network.family)
    config = family.config(**network.config)
    model = objective_of(family).build(family.build(config, network.vocab_size), config)
    fitting = {name: tensor for name, tensor in network.tensors.items() if name in model.state_dict()}
    assert len(fitting) == len(network.tensors)
    missing = model.load_state_dict(fitting, strict=False).missing_keys
    assert not any(name.startswith("encoder.") for name in missing), missing
    return model.eval()


@torch.no_grad()
def largest_difference(theirs: Any, folder: Path) -> float:
    network = read_network(folder)
    ours = built(network)
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(3, network.vocab_size, (ROWS, TOKENS), generator=generator)
    mask = torch.ones(ROWS, TOKENS, dtype=torch.bool)
    mask[1, TOKENS // 2 :] = False
    real = mask if network.family == "bert" else torch.ones_like(mask)
    answer = theirs(input_ids=ids, attention_mask=real.long(), output_hidden_states=True)
    encoded = ours.encoder(ids, real)
    pairs = list(zip(encoded.layers, answer.hidden_states, strict=True))
    logits = answer.get("logits", answer.get("prediction_logits"))
    if logits is not None and "head" not in network.begins_anew:
        pairs.append((ours.logits(encoded.features), logits))
    if "seq_relationship_logits" in answer:
        follows = ours.pair_logits(encoded.features[:, 0])
        pairs.append((follows[:, None], answer.seq_relationship_logits[:, None]))
    return max(difference(a, b, real) for a, b in pairs)


def difference(a: Tensor, b: Tensor, mask: Tensor) -> float:
    if a.shape[1] == mask.shape[1]:
        a, b = a[mask], b[mask]
    return float((a - b).abs().max())


def main() -> None:
    differences = {}
    with tempfile.TemporaryDirectory() as scratch:
        for name, model in small_models().items():
            folder = Path(scratch) / name
            shaken(model).save_pretrained(folder)
            differences[name] = largest_difference(model, folder)
    for name in sys.argv[1:]:
        from transformers import AutoModel

        differences[name] = largest_difference(AutoModel.from_pretrained(name).eval(), Path(name))
    print(json.dumps(differences, indent=1))


if __name__ == "__main__":
    main()
