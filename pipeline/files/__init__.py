"""Files that appear whole or not at all, and their hashes. Decides no number."""
