"""Verification rules: pure functions that walk a draft under the target's laws."""
