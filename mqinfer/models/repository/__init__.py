"""The model repository: folders, versions, configuration, and checks of the files before any is opened."""

from __future__ import annotations

from mqinfer.models.repository.versions import ModelVersion, Problem, Repository, Scan

__all__ = ["ModelVersion", "Problem", "Repository", "Scan"]
