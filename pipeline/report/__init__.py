"""The report: figures read from the metrics files, drawn, and laid out as a page and as Markdown."""
