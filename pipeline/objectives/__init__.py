"""What trains language models: one objective a file, by its name."""
