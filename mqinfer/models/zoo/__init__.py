"""The model zoo: builds the networks of the field into a model repository, from nothing but code and a seed."""

from mqinfer.models.zoo.building import BuiltModel, build, catalogue

__all__ = ["BuiltModel", "build", "catalogue"]
