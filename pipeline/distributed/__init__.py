"""Where trainings run: in this process, on Ray Train or Ray Tune. Only this room and `doctor` import Ray."""
