"""The report: a verdict, sentences, tables and charts from the metrics files, as one page and as Markdown."""
