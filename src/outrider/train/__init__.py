"""Training draft heads: regenerate, features, fit, evaluate."""
