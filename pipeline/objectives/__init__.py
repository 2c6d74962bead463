"""Objectives: what the language-model stages of a family train on. One file each, exporting `OBJECTIVE`."""
