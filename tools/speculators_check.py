"""Whether an EAGLE-3 head that we exported means the same to the `speculators` package.

Two halves, in two environments: `write` needs outrider, `compare` needs speculators and nothing of ours.

    python tools/speculators_check.py write HEAD CASE      a head in our layout -> CASE/export, and what we compute
    python tools/speculators_check.py compare CASE         loads the export as the package does, and compares logits

`compare` unrolls the head over the same rows with the package's own forward, and exits with 1 when any logit of any
step differs by more than 1e-4.
"""

from __future__ import annotations

import sys
from pathlib import Path

STEPS, ROWS, LIMIT = 4, 128, 1e-4  # rows: the block size of the attention that the package uses


def write(head_folder: Path, case: Path) -> None:
    """The head in the package's layout, a stand-in for its target, random rows, and our logits of every step."""
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
            num_hidden_layers=4,
            num_attention_heads=1,
            initializer_range=1.0,
            tie_word_embeddings=False,
        )
    )
    target.half().save_pretrained(case / "target")
    LAYOUTS["speculators"].write(head, str((case / "target").resolve())).write(case / "export")
    generator = torch.Generator().manual_seed(0)
    embedding = target.get_input_embeddings().weight.detach().float()
    tokens = torch.randint(config.vocab_size, (1, ROWS), generator=generator)
    features = torch.randn(1, ROWS, len(config.hidden_layers) * config.hidden_size, generator=generator)
    rows = {"tokens": tokens, "features": features}
    for step, hidden in enumerate(head.unroll(embedding[tokens], features, STEPS)):
        rows[f"logits.{step}"] = head.logits(hidden, step)
    save_file({name: tensor.contiguous() for name, tensor in rows.items()}, case / "rows.safetensors")


def compare(case: Path) -> float:
    """The largest difference over all steps and rows that have a token."""
    import torch
    from safetensors.torch import load_file
    from speculators.models.eagle3.core import Eagle3DraftModel  # type: ignore[import-not-found]

    rows = load_file(case / "rows.safetensors")
    model = Eagle3DraftModel.from_pretrained(case / "export").float().eval()
    found: list[torch.Tensor] = []
    model.lm_head.register_forward_hook(lambda module, inputs, output: found.append(output))
    with torch.no_grad():
        documents = torch.zeros(1, ROWS, dtype=torch.long)
        model(hidden_states=rows["features"], input_ids=rows["tokens"], document_ids=documents, ttt_steps=STEPS)
    worst = 0.0
    for step, theirs in enumerate(found):
        whole = ROWS - step  # the rows behind have no token in this step
        difference = float((theirs - rows[f"logits.{step}"])[:, :whole].abs().max())
        print(f"step {step}: {whole} rows x {theirs.shape[-1]} logits, largest difference {difference:.1e}")
        worst = max(worst, difference)
    assert len(found) == STEPS, f"the package ran {len(found)} steps"
    return worst


if __name__ == "__main__":
    if sys.argv[1:2] == ["write"] and len(sys.argv) == 4:
        write(Path(sys.argv[2]), Path(sys.argv[3]))
    elif sys.argv[1:2] == ["compare"] and len(sys.argv) == 3:
        sys.exit(compare(Path(sys.argv[2])) > LIMIT)
    else:
        sys.exit(__doc__)
