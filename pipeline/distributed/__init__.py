"""Trainings run in this process, on Ray Train or on Ray Tune. Only this room and `doctor` import Ray."""
