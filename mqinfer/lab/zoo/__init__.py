"""The model zoo: builds the networks of the field into a model repository, from nothing but code and a seed."""

from mqinfer.lab.zoo.building import BuiltModel, build, catalogue
from mqinfer.lab.zoo.training import Lessons

__all__ = ["BuiltModel", "Lessons", "build", "catalogue"]
