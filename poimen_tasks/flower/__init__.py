"""Flower with safe defaults, and Poimen's pages in it: what the store knows, beside what Celery's events tell.

Nothing here imports Flower before it is needed: the extra `flower` may be missing.
"""

from __future__ import annotations

from poimen_tasks.flower.options import OPTIONS, FlowerOptions, read_options
from poimen_tasks.flower.passwords import hide_passwords, revealed
from poimen_tasks.flower.serve import prepare
from poimen_tasks.flower.system import System

__all__ = ["OPTIONS", "FlowerOptions", "System", "hide_passwords", "prepare", "read_options", "revealed"]
