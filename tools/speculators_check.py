"""Whether an EAGLE-3 head that we exported means the same to the `speculators` package.

Two halves, in two environments: `write` needs outrider, `compare` needs speculators and nothing of ours.

    python tools/speculators_check.py write HEAD CASE [MODEL]  a head in our layout -> CASE/export, and what we compute
    python tools/speculators_check.py compare CASE             loads the export as the package does, compares logits

`compare` unrolls the head over the same rows with the package's own forward, and exits with 1 when any logit of any
step differs by more than 1e-4 of the larger of 1 and itself.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

STEPS, ROWS, LIMIT = 4, 128, 1e-4  # rows: the block size of the attention that the package uses


def write(head_folder: Path, case: Path, model: str | None = None) -> None:
    """The head in the package's layout, a stand-in for its target, rows, and our logits of every step. The rows are
    those of a text for ``model``, or random."""
    import torch
    from safetensors.torch import save_file
    from transformers import LlamaConfig, LlamaForCausalLM

    from outrider.heads import files
    from outrider.heads.layouts.table import LAYOUTS

    head = files.load(head_folder).requires_grad_(False)
    config = head.config
    torch.manual_seed(0)
    target = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=config.vocab_size,
            hidden_size=config.hidden_size,
            intermediate_size=config.hidden_size,
            num_hidden_layers=1,
            num_attention_heads=1,
            initializer_range=1.0,
            tie_word_embeddings=False,
        )
    )
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(config.vocab_size, (1, ROWS), generator=generator)
    features = torch.randn(1, ROWS, len(config.hidden_layers) * config.hidden_size, generator=generator)
    if model is not None:
        embedding, tokens, features = _read(model, config.hidden_layers)
        target.get_input_embeddings().weight.data.copy_(embedding)
    target.half().save_pretrained(case / "target")
    facts = json.loads((case / "target" / "config.json").read_text())
    facts["num_hidden_layers"] = max(config.hidden_layers) + 2  # the package compares them, and reads none
    (case / "target" / "config.json").write_text(json.dumps(facts))
    LAYOUTS["speculators"].write(head, str((case / "target").resolve())).write(case / "export")
    embedding = target.get_input_embeddings().weight.detach().float()
    rows = {"tokens": tokens, "features": features}
    for step, hidden in enumerate(head.unroll(embedding[tokens], features, STEPS)):
        rows[f"logits.{step}"] = head.logits(hidden, step)
    save_file({name: tensor.contiguous() for name, tensor in rows.items()}, case / "rows.safetensors")


def _read(model: str, layers: Sequence[int]) -> tuple[Tensor, Tensor, Tensor]:
    """Embedding, tokens [1, rows] one behind the features, features [1, rows, width]: of this file's own text."""
    import torch

    from outrider.target.batch import Span
    from outrider.target.model import load_target
    from outrider.train.start import read_target

    target = load_target(model)
    tokens = target.tokenizer.encode(Path(__file__).read_text(encoding="utf-8"))[: ROWS + 1]
    storage, context = target.new_storage(ROWS + 16, 16), torch.arange(ROWS + 16, dtype=torch.int32)
    hidden = target.forward([Span(tokens, context, 0)], storage, layers).hidden
    assert hidden is not None
    return read_target(model).embedding, torch.tensor([tokens[1:]]), hidden[None, :-1].clone()


def compare(case: Path) -> float:
    """The largest difference over all steps and rows with a token, as a share of the logit where that is over 1."""
    import torch
    from safetensors.torch import load_file
    from speculators.models.eagle3.core import Eagle3DraftModel  # type: ignore[import-not-found]

    rows = load_file(case / "rows.safetensors")
    model = Eagle3DraftModel.from_pretrained(case / "export")
    # 0.9.0 takes the target's embedding only where its own holds NaN, and large ones start as zeros
    model.embed_tokens.weight.data.fill_(float("nan"))
    model.load_verifier_weights()
    model.float().eval()
    found: list[torch.Tensor] = []
    model.lm_head.register_forward_hook(lambda module, inputs, output: found.append(output))
    with torch.no_grad():
        documents = torch.zeros(1, ROWS, dtype=torch.long)
        model(hidden_states=rows["features"], input_ids=rows["tokens"], document_ids=documents, ttt_steps=STEPS)
    worst = 0.0
    for step, theirs in enumerate(found):
        whole = ROWS - step  # the rows behind have no token in this step
        ours = rows[f"logits.{step}"][:, :whole]
        difference = (theirs[:, :whole] - ours).abs()
        relative = float((difference / ours.abs().clamp_min(1.0)).max())
        print(
            f"step {step}: {whole} rows x {theirs.shape[-1]} logits up to {float(ours.abs().max()):.0f}, largest "
            f"difference {float(difference.max()):.1e}, as a share {relative:.1e}"
        )
        worst = max(worst, relative)
    assert len(found) == STEPS, f"the package ran {len(found)} steps"
    return worst


if __name__ == "__main__":
    if sys.argv[1:2] == ["write"] and len(sys.argv) in (4, 5):
        write(Path(sys.argv[2]), Path(sys.argv[3]), *sys.argv[4:])
    elif sys.argv[1:2] == ["compare"] and len(sys.argv) == 3:
        sys.exit(compare(Path(sys.argv[2])) > LIMIT)
    else:
        sys.exit(__doc__)
