"""The pure core: draft tree, laws, noise, logits pipeline, verifiers, accounting. No model, no I/O."""
