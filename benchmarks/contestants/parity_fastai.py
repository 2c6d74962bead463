"""The distance to fastai's own AWD_LSTM: of logits in evaluation, and of gradients without dropout."""

from __future__ import annotations

from pathlib import Path

import torch
from fastai.text.models.awdlstm import AWD_LSTM, awd_lstm_lm_config
from fastai.text.models.core import get_language_model

from models.awd_lstm import AWDLSTM, Config
from models.heads import LanguageModel
from pipeline.weights.fastai import language_model_tensors

V, E, H, LAYERS = 500, 40, 64, 3
torch.manual_seed(1)
config = awd_lstm_lm_config | {"emb_sz": E, "n_hid": H, "n_layers": LAYERS}
theirs = get_language_model(AWD_LSTM, V, config=config, drop_mult=0.0)
ours = LanguageModel(AWDLSTM(Config(E, H, LAYERS, True, 0.0, 0.0, 0.0, 0.0, 0.0), V), tie_weights=True)
ours.load_state_dict(language_model_tensors(theirs.state_dict(), Path("fastai")))
ids, targets = torch.randint(2, V, (4, 30)), torch.randint(2, V, (4, 30))  # 1 is their padding

theirs.eval()
theirs.reset()
with torch.no_grad():
    wanted = theirs(ids)[0]
    logits = ours.logits(ours(ids).features)
largest = float((logits - wanted).abs().max())

theirs.train()
theirs.reset()
loss = torch.nn.functional.cross_entropy(theirs(ids)[0].flatten(0, 1), targets.flatten(), reduction="sum")
loss.backward()
ours.loss(ours(ids).features, targets, torch.float32).backward()
our_weights, their_weights = dict(ours.named_parameters()), dict(theirs.named_parameters())
names = {"encoder.embedding.weight": "0.encoder.weight", "decoder_bias": "1.decoder.bias"}
for depth in range(LAYERS):
    names[f"encoder.layers.{depth}.weight_hh"] = f"0.rnns.{depth}.weight_hh_l0_raw"
    names[f"encoder.layers.{depth}.weight_ih"] = f"0.rnns.{depth}.module.weight_ih_l0"
    names[f"encoder.layers.{depth}.bias"] = f"0.rnns.{depth}.module.bias_ih_l0"
relative = []
for our_name, their_name in names.items():
    gradient, expected = our_weights[our_name].grad, their_weights[their_name].grad
    assert gradient is not None
    relative.append(float((gradient - expected).norm() / expected.norm()))
print(largest, max(relative))
