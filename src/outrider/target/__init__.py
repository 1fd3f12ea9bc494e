"""The target room: loading, packed weights, attention backends, and the one ragged forward."""
