"""Advice on speculation, from measurements on the user's own model and prompts: screen, predict, prove, answer."""
