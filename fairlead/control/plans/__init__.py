"""Parallel plans of the platform's gangs: chosen, calibrated, reviewed, with speed curves for the scheduler."""
