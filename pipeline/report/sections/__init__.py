"""The sections of the report, one file each: `section(figures)` composes it, or returns None.

`pipeline/report/contents.py` lists them in order. A study's file has `blocks(study)` too, which its command
prints.
"""
