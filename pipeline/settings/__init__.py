"""Strict, typed settings: section base, loader, messages."""
