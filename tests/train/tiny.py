"""A head that is trained for a moment."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from outrider.heads import files
from outrider.heads.config import eagle3_config
from outrider.heads.eagle3 import Eagle3
from outrider.target.model import Target
from outrider.train import vocabulary
from outrider.train.answers import Sample
from outrider.train.features import FeatureStore, extract
from outrider.train.fit import Fit, FitOptions
from outrider.train.start import initialise, read_target

OPTIONS = FitOptions(epochs=12, rows=256, longest=64, num_steps=3, lr=5e-3, held_out=4)


def prepared(
    model: str, target: Target, samples: Sequence[Sample], folder: Path, options: FitOptions = OPTIONS, vocab: int = 80
) -> Fit:
    """A fit over ``samples`` that is ready to run."""
    weights = read_target(model)
    config = eagle3_config(target.config, target.fingerprint, vocab, target.max_model_len)
    store = FeatureStore(folder / "features")
    store.describe(layers=list(config.hidden_layers))
    extract(target, samples, config.hidden_layers, store, lambda done, total: None)
    head = Eagle3(config)
    head.set_vocabulary(vocabulary.choose(samples, config.draft_vocab_size, config.vocab_size, ()).ids)
    initialise(head, weights, options.seed)
    return Fit(head, weights, store, options, folder)


def trained(model: str, target: Target, samples: Sequence[Sample], folder: Path) -> Path:
    """The folder of a trained head."""
    fit = prepared(model, target, samples, folder)
    fit.run(lambda line, total: None)
    files.save(fit.head, folder / "head")
    return folder / "head"
