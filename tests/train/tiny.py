"""A head that is trained for a moment."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import torch

from outrider.heads import files
from outrider.heads.config import RECURRENT, HeadKind, config_for, fused_layers
from outrider.heads.kinds import make
from outrider.target.model import Target
from outrider.train import vocabulary
from outrider.train.answers import Sample
from outrider.train.features import FeatureStore, extract
from outrider.train.fit import Fit, FitOptions
from outrider.train.objective import ALONE
from outrider.train.start import read_target
from outrider.train.workers import Workers

OPTIONS = FitOptions(epochs=12, rows=256, longest=64, num_steps=3, lr=5e-3, held_out=4)
TEMPLATE = "{% for message in messages %}the {{ message['content'] }} {% endfor %}"


def chatting(target: str, folder: Path) -> str:
    """A copy of ``target`` with a chat template."""
    shutil.copytree(target, folder / "target")
    (folder / "target" / "chat_template.jinja").write_text(TEMPLATE)
    return str(folder / "target")


def prepared(
    model: str,
    target: Target,
    samples: Sequence[Sample],
    folder: Path,
    options: FitOptions = OPTIONS,
    vocab: int = 80,
    kind: HeadKind = "eagle3",
    workers: Workers = ALONE,
) -> Fit:
    """A fit over ``samples`` that is ready to run."""
    weights = read_target(model)
    stack = {} if kind in RECURRENT else {"num_heads": options.num_steps}
    config = config_for(kind, target.config, target.fingerprint, vocab, target.max_model_len, **stack)
    layers = fused_layers(target.num_layers)
    store = FeatureStore(folder / "features")
    store.describe(layers=list(layers))
    extract(target, samples, layers, store, lambda done, total: None)
    head = make(config)
    head.set_vocabulary(vocabulary.choose(samples, config.draft_vocab_size, config.vocab_size, ()).ids)
    head.start(weights, torch.Generator().manual_seed(options.seed))
    return Fit(head, weights, store, options, folder, workers)


def trained(model: str, target: Target, samples: Sequence[Sample], folder: Path, kind: HeadKind = "eagle3") -> Path:
    """The folder of a trained head."""
    fit = prepared(model, target, samples, folder, kind=kind)
    fit.run(lambda line, total: None)
    files.save(fit.head, folder / "head")
    return folder / "head"
