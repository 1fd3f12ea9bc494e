"""The process that goes on training a head on recent traffic: one job, one thread, within its share of a core.

It reads texts with the features that serving saw, adds what serving does not compute (the whole law's sum and its
likeliest token), gives the head rows for tokens that it lacks and the texts have often, trains it on all but the latest
texts, and writes the new head and how it and the old one do on those.
"""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor

from outrider.heads import files
from outrider.heads.base import TargetWeights
from outrider.paths import write_whole
from outrider.train.features import FeatureStore, Text
from outrider.train.fit import Fit, FitOptions
from outrider.train.start import read_target, with_vocabulary

_ROWS = 512  # of a product with the whole vocabulary
_OFTEN, _GROWTH = 3, 256  # of a token, to be worth a row; rows that one training adds at most


@dataclass(frozen=True, slots=True)
class Job:
    """``texts``: a feature store, the latest text first, of which the first ``held_out`` are measured on."""

    target: str
    head: str
    texts: str
    out: str
    held_out: int
    epochs: int
    lr: float
    share: float
    seed: int

    def write(self, path: Path) -> None:
        """As JSON."""
        path.write_text(json.dumps(asdict(self)), encoding="utf-8")


@dataclass(frozen=True, slots=True)
class Result:
    """Mean acceptance lengths on the latest texts, teacher-forced, with the old head and the new one."""

    before: float
    after: float


def work(job: Job) -> Result:
    """Do it. The head lies in ``out/head`` and the result in ``out/result.json``, written last."""
    out, old, target = Path(job.out), files.load(Path(job.head)), read_target(job.target)
    texts = _texts(Path(job.texts))
    head = with_vocabulary(old, grown(old.target_ids, texts[job.held_out :]), target)
    store = FeatureStore(out / "complete")
    store.append([complete(text, target) for text in texts])
    options = FitOptions(
        epochs=job.epochs,
        rows=1024,
        num_steps=max(2, head.config.trained_steps),
        lr=job.lr,
        held_out=job.held_out,
        seed=job.seed,
        share=job.share,
    )
    before = Fit(old, target, store, options, out).evaluate(0, 0).length
    fit = Fit(head, target, store, options, out)
    fit.run(lambda line, total: None)
    result = Result(before, fit.evaluate(fit.total, job.epochs).length)
    files.save(head, out / "head")
    write_whole(out / "result.json", json.dumps(asdict(result)))
    return result


def _texts(folder: Path) -> list[Text]:
    reader = FeatureStore(folder).reader()
    return [reader[index] for index in range(len(reader))]


def grown(ids: Tensor, texts: Sequence[Text]) -> Tensor:
    """``ids`` [draft vocab], ascending, and the tokens that the answers in ``texts`` have often without them."""
    known = set(ids.tolist())
    counts = Counter(token for text in texts for token in text.tokens[text.num_prompt_tokens :].tolist())
    often = [token for token, count in counts.most_common() if count >= _OFTEN and token not in known]
    return torch.tensor(sorted([*known, *often[:_GROWTH]]))


@torch.no_grad()
def complete(text: Text, target: TargetWeights) -> Text:
    """``text`` with the sum and the likeliest token of the target's whole law at every row."""
    sums, best = [], []
    for last in torch.split(text.last.float(), _ROWS):
        logits = last @ target.head.T
        sums.append(logits.logsumexp(-1))
        best.append(logits.argmax(-1))
    found = torch.cat(sums), torch.cat(best).to(torch.int32)
    return Text(text.tokens, text.features, text.last, *found, text.num_prompt_tokens)


if __name__ == "__main__":
    torch.set_num_threads(1)
    os.nice(10)
    work(Job(**json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))))
