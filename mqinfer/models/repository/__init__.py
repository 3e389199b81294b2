"""The model repository: folders, versions and configuration."""

from __future__ import annotations

from mqinfer.models.repository.versions import ModelVersion, Problem, Repository, Scan

__all__ = ["ModelVersion", "Problem", "Repository", "Scan"]
