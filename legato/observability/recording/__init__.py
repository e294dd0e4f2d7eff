"""Recordings: what a scheduler was told and what it decided, step by step, without prompts."""
