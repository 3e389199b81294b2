"""Reflection, as grpcurl and other clients use it: services, and their messages as the protocols have them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import grpc
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool

from mqinfer.gateway.access import Access
from mqinfer.gateway.core import Core
from mqinfer.gateway.grpc import make_handlers
from mqinfer.gateway.messages import message_class
from mqinfer.gateway.settings import GatewaySettings
from mqinfer.gateway.tfs.grpc import make_grpc_handlers
from tests.gateway.listening import over_grpc

REQUEST, RESPONSE = (message_class(f"grpc.reflection.v1.ServerReflection{each}") for each in ("Request", "Response"))


@pytest.mark.parametrize("version", ["v1", "v1alpha"])
@pytest.mark.parametrize(
    ("make", "services", "field"),
    [
        (
            make_handlers,
            ["grpc.health.v1.Health", "grpc.reflection.v1.ServerReflection", "inference.GRPCInferenceService"],
            "inference.ModelInferRequest.InferInputTensor.contents",
        ),
        (
            make_grpc_handlers,
            [
                "grpc.reflection.v1.ServerReflection",
                "tensorflow.serving.ModelService",
                "tensorflow.serving.PredictionService",
            ],
            "tensorflow.serving.TensorProto.float_val",
        ),
    ],
)
async def test_a_client_finds_out_what_there_is(
    core: Core, make: Callable[..., list[Any]], services: list[str], field: str, version: str
) -> None:
    """It lists the services, and builds their messages of the files that it gets; what is not there is an error."""
    settings = GatewaySettings()
    async with (
        over_grpc(make(core, Access(), settings), settings) as address,
        grpc.aio.insecure_channel(address) as channel,
    ):
        stream = channel.stream_stream(f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo")()

        async def ask(**fields: str) -> Any:
            await stream.write(REQUEST(**fields).SerializeToString())
            return RESPONSE.FromString(await stream.read())

        listed = (await ask(list_services="*")).list_services_response.service
        assert sorted(each.name for each in listed) == services
        for service in services:
            pool = descriptor_pool.DescriptorPool()
            found = (await ask(file_containing_symbol=service)).file_descriptor_response.file_descriptor_proto
            for data in reversed(found):  # what is imported comes last
                pool.Add(descriptor_pb2.FileDescriptorProto.FromString(data))
            assert pool.FindServiceByName(service).methods
            if service.startswith(field.partition(".")[0]):
                message, _, name = field.rpartition(".")
                declared = pool.FindMessageTypeByName(message).fields_by_name[name]
                assert declared.type in {declared.TYPE_MESSAGE, declared.TYPE_FLOAT}
        assert (await ask(file_containing_symbol="nobody.Service")).error_response.error_code == 5
        assert len((await ask(file_by_filename="reflection.proto")).file_descriptor_response.file_descriptor_proto) == 1
        await stream.done_writing()
        assert await stream.read() is grpc.aio.EOF


async def test_names_are_short(core: Core) -> None:
    """A request that is no name is refused: the answer would repeat it."""
    settings = GatewaySettings()
    async with (
        over_grpc(make_handlers(core, Access(), settings), settings) as address,
        grpc.aio.insecure_channel(address) as channel,
    ):
        stream = channel.stream_stream("/grpc.reflection.v1.ServerReflection/ServerReflectionInfo")()
        await stream.write(REQUEST(file_containing_symbol="a." * 4096).SerializeToString())
        assert await stream.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert "at most 4096 are accepted" in await stream.details()
