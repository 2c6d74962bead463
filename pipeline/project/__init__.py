"""The project's folder: params.yaml, presets, dvc.yaml and dvc.lock."""
