"""The model zoo: builds well-known networks into a model repository, from code and a seed alone."""

from mqinfer.lab.zoo.building import BuiltModel, build, catalogue
from mqinfer.lab.zoo.training import Lessons

__all__ = ["BuiltModel", "Lessons", "build", "catalogue"]
