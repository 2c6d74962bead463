"""Raw text to token shards, and token shards to batches."""
