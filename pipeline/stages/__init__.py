"""One verb-named file for each DVC stage, each with a `run`."""
