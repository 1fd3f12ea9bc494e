"""Searches for the settings of a method on a model, on the user's prompts."""
