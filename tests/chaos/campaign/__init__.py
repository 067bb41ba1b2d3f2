"""Hundreds of faults on a real platform under a mix of jobs, judged by what the jobs wrote down themselves."""
