"""A whole gateway process in the test's loop: its ports, TLS, keys, and what happens when it is asked to stop."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import socket
import ssl
import stat
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import aiohttp
import grpc
import pytest

from mqinfer.broker.address import BrokerAddress
from mqinfer.broker.mosquitto.certificates import Authority
from mqinfer.client.result import InferResult
from mqinfer.gateway.calls import InferCall
from mqinfer.gateway.core import Core
from mqinfer.gateway.messages import message_class
from mqinfer.gateway.serving.fronts import check_ports
from mqinfer.gateway.serving.process import GatewaySpec, Stop, serve
from mqinfer.gateway.settings import GatewaySettings
from mqinfer.gateway.tfs.messages import tfs_class
from mqinfer.protocol.errors import BrokerUnreachable, ConfigError, MqinferError, NameTaken
from mqinfer.web.peers import close_connections, name_connection
from mqinfer.web.tls import TlsFiles
from tests.gateway.conftest import Fleet, gateway_settings
from tests.patience import until
from tests.ports import free_port

KEY = "key-of-ann-0123456789"
SLOW = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}]}
IDENTITY = {"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [1, 2], "data": [1, 2]}]}
PATIENCE = 60.0


@dataclass(frozen=True, slots=True)
class Running:
    """A gateway that serves."""

    http: str
    grpc: str
    stop: Stop
    ended: asyncio.Task[None]


def settings_of(**changes: Any) -> GatewaySettings:
    """Return settings with free ports for the Open Inference Protocol, and no others."""
    off = {"metrics_port": 0, "tfs_grpc_port": 0, "tfs_rest_port": 0}
    return gateway_settings(**{"http_port": free_port(), "grpc_port": free_port(), **off, **changes})


@asynccontextmanager
async def running(fleet: Fleet, settings: GatewaySettings, name: str) -> AsyncIterator[Running]:
    """Serve as `mqinfer gateway` does, until the end of the block."""
    stop, ready = Stop(), asyncio.Event()
    spec = GatewaySpec(BrokerAddress.parse(fleet.url), name, fleet.root, settings)
    task = asyncio.create_task(serve(spec, stop, ready.set))
    waiting = asyncio.create_task(ready.wait())
    await asyncio.wait({task, waiting}, timeout=PATIENCE, return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
    if task.done():
        task.result()
    scheme, ports = "https" if settings.callers.tls else "http", settings.ports
    try:
        yield Running(f"{scheme}://localhost:{ports.http_port}", f"localhost:{ports.grpc_port}", stop, task)
    finally:
        stop.request()
        async with asyncio.timeout(PATIENCE):
            await task


async def get(session: aiohttp.ClientSession, url: str, **headers: str) -> tuple[int, Any]:
    """Return status and JSON of a reply."""
    async with session.get(url, headers={name.replace("_", "-"): value for name, value in headers.items()}) as reply:
        return reply.status, json.loads(await reply.read())


async def grpc_code(channel: Any, method: str, **metadata: str) -> tuple[grpc.StatusCode, str]:
    """Return status and text of a call with an empty request."""
    call = channel.unary_unary(f"/inference.GRPCInferenceService/{method}")
    pairs = tuple((name.replace("_", "-"), value) for name, value in metadata.items())
    try:
        await call(b"", metadata=pairs, timeout=PATIENCE)
    except grpc.aio.AioRpcError as error:
        return error.code(), error.details()
    return grpc.StatusCode.OK, ""


@pytest.fixture
def spied(monkeypatch: pytest.MonkeyPatch) -> Callable[[], Awaitable[InferCall]]:
    """Return what waits for the next call that has reached the core."""
    calls: asyncio.Queue[InferCall] = asyncio.Queue()
    real = Core.infer

    async def infer(core: Core, call: InferCall) -> InferResult:
        calls.put_nowait(call)
        return await real(core, call)

    monkeypatch.setattr(Core, "infer", infer)
    return calls.get


async def test_accepted_calls_are_answered(
    fleet: Fleet, unique: Callable[[str], str], spied: Callable[[], Awaitable[InferCall]]
) -> None:
    """A call that was accepted before SIGTERM has its result; new connections are refused; then the process ends.

    Takes as long as one run of the slow model.
    """
    async with running(fleet, settings_of(drain=PATIENCE), unique("gw")) as gateway:
        async with aiohttp.ClientSession() as session:
            assert await get(session, f"{gateway.http}/v2/health/ready") == (200, {"ready": True})
            call = asyncio.create_task(session.post(f"{gateway.http}/v2/models/slow/infer", json=SLOW))
            await spied()
            gateway.stop.request()
            with suppress(OSError):  # refused once it listens no more
                while True:
                    _, writer = await asyncio.open_connection(*gateway.http.removeprefix("http://").split(":"))
                    writer.close()
            assert not gateway.ended.done()
            async with await call as reply:
                assert reply.status == 200
                assert (await reply.json())["outputs"][0]["data"] == [1, 2, 3, 4]
        await asyncio.wait_for(gateway.ended, PATIENCE)


@pytest.mark.parametrize("drain", [0.0, PATIENCE])
async def test_calls_that_are_late(
    fleet: Fleet, unique: Callable[[str], str], spied: Callable[[], Awaitable[InferCall]], drain: float
) -> None:
    """At the end of the drain, or at a second signal, those that wait get a typed error, on either front."""
    infer = message_class("inference.ModelInferRequest")(
        model_name="slow", inputs=[{"name": "x", "datatype": "FP32", "shape": [1, 4]}], raw_input_contents=[b"\0" * 16]
    )
    async with (
        running(fleet, settings_of(drain=drain), unique("gw")) as gateway,
        grpc.aio.insecure_channel(gateway.grpc) as channel,
        aiohttp.ClientSession() as session,
    ):
        method = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
        by_http = asyncio.create_task(session.post(f"{gateway.http}/v2/models/slow/infer", json=SLOW))
        by_grpc = method(infer.SerializeToString(), timeout=PATIENCE)
        for _ in range(2):
            await spied()
        gateway.stop.request()
        gateway.stop.request()
        async with await by_http as reply:
            assert reply.status == 499
            assert "error" in await reply.json()
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await by_grpc
        assert caught.value.code() in {grpc.StatusCode.CANCELLED, grpc.StatusCode.UNAVAILABLE}
        await asyncio.wait_for(gateway.ended, PATIENCE)


@dataclass(frozen=True, slots=True)
class Files:
    """A certificate authority, and what it has signed."""

    authority: Path
    server: TlsFiles
    clients: dict[str, tuple[Path, Path]]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    """Certificates of a gateway on this machine, and of two callers."""
    folder = tmp_path_factory.mktemp("tls")
    own = Authority.make()
    authority = Authority(own)

    def write(name: str, pair: Any) -> tuple[Path, Path]:
        paths = folder / f"{name}.crt", folder / f"{name}.key"
        for path, content in zip(paths, (pair.certificate, pair.key), strict=True):
            path.write_bytes(content)
        return paths

    ca, _ = write("ca", own)
    clients = {name: write(name, authority.client(name, 2)) for name in ("car-1", "car-2")}
    return Files(ca, TlsFiles(*write("gateway", authority.broker(["localhost"], 2))), clients)


def client_context(files: Files, name: str | None) -> ssl.SSLContext:
    """Return what a client of HTTP encrypts with."""
    context = ssl.create_default_context(cafile=files.authority)
    if name:
        context.load_cert_chain(*files.clients[name])
    return context


def client_credentials(files: Files, name: str | None) -> Any:
    """Return what a client of gRPC encrypts with."""
    certificate, key = (path.read_bytes() for path in files.clients[name]) if name else (None, None)
    return grpc.ssl_channel_credentials(files.authority.read_bytes(), key, certificate)


async def test_tls(fleet: Fleet, unique: Callable[[str], str], files: Files) -> None:
    """Both ports are encrypted; nothing is answered without."""
    async with (
        running(fleet, settings_of(tls=files.server), unique("gw")) as gateway,
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=client_context(files, None))) as session,
        grpc.aio.secure_channel(gateway.grpc, client_credentials(files, None)) as channel,
    ):
        assert await get(session, f"{gateway.http}/v2/health/live") == (200, {"live": True})
        assert (await grpc_code(channel, "ServerLive"))[0] is grpc.StatusCode.OK
        with pytest.raises(aiohttp.ClientError):
            await get(session, gateway.http.replace("https", "http") + "/v2/health/live")


async def test_client_certificates(fleet: Fleet, unique: Callable[[str], str], files: Files, tmp_path: Path) -> None:
    """With --client-ca nobody gets in without a certificate; its name has the rights that the key file states."""
    keys = tmp_path / "keys.toml"
    keys.write_text('[car-1]\nrights = ["metadata"]\n')
    tls = replace(files.server, client_ca=files.authority)

    async def ask(gateway: Running, name: str | None) -> list[Any]:
        async with (
            aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=client_context(files, name))) as session,
            grpc.aio.secure_channel(gateway.grpc, client_credentials(files, name)) as channel,
        ):
            try:
                status: Any = (await get(session, f"{gateway.http}/v2"))[0]
            except aiohttp.ClientError:
                status = None
            return [status, (await grpc_code(channel, "ServerMetadata"))[0]]

    async with running(fleet, settings_of(tls=tls, keys=keys), unique("gw")) as gateway:
        assert await ask(gateway, "car-1") == [200, grpc.StatusCode.OK]
        assert await ask(gateway, "car-2") == [401, grpc.StatusCode.UNAUTHENTICATED]
        assert await ask(gateway, None) == [None, grpc.StatusCode.UNAVAILABLE]


async def test_quotas_and_whom_a_call_is_for(
    fleet: Fleet, unique: Callable[[str], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Above its quota a caller gets 429 with the time to wait; the server's log names whom the gateway loads for."""
    logged: list[logging.LogRecord] = []
    monkeypatch.setattr(logging.getLogger("mqinfer.audit"), "isEnabledFor", lambda level: level >= logging.INFO)
    monkeypatch.setattr(logging.getLogger("mqinfer.audit"), "handle", logged.append)
    keys, name = tmp_path / "keys.toml", unique("gw")
    quota = f'[ann]\nkey = "{KEY}"\nrights = ["infer"]\nrequests_per_second = 0.001\n'
    keys.write_text(f'{quota}["o\\nps"]\nkey = "{KEY}-too"\nrights = ["admin"]\n')
    settings = settings_of(keys=keys, model_control=True, metrics_port=free_port())
    async with running(fleet, settings, name) as gateway, aiohttp.ClientSession() as session:
        url, ann = f"{gateway.http}/v2/models/identity_fp32/infer", {"Authorization": f"Bearer {KEY}"}
        async with session.post(url, json=IDENTITY, headers=ann) as reply:
            assert reply.status == 200
        async with session.post(url, json=IDENTITY, headers=ann) as reply:
            assert (reply.status, "'ann' has used up its quota" in await reply.text()) == (429, True)
            assert 900 < int(reply.headers["Retry-After"]) <= 1000
        ops = {"Authorization": f"Bearer {KEY}-too"}
        async with session.post(f"{gateway.http}/v2/repository/models/absent/load", headers=ops) as reply:
            assert "no server has it" in await reply.text()
        async with session.get(f"http://127.0.0.1:{settings.ports.metrics_port}/metrics") as reply:
            assert re.search(r'caller_over_quota_total\{.*caller="ann".*\} 1.0', await reply.text())
        await until(lambda: logged)
    (line,) = [each for each in logged if vars(each)["caller"] == name]
    assert vars(line)["on_behalf_of"] == r"key o\nps"
    assert r'on behalf of "key o\nps": repository/models/absent/load: model_not_found' in line.getMessage()


async def test_keys_and_restricted_calls(fleet: Fleet, unique: Callable[[str], str], tmp_path: Path) -> None:
    """By HTTP header and by metadata of gRPC, with the status codes and sentences of Triton."""
    keys = tmp_path / "keys.toml"
    keys.write_text(f'[ann]\nkey = "{KEY}"\nrights = ["metadata", "infer"]\n')
    settings = settings_of(
        keys=keys, restrict=["statistics:admin-key=open"], metrics_port=free_port(), tfs_rest_port=free_port()
    )
    bearer = f"Bearer {KEY}"
    async with (
        running(fleet, settings, unique("gw")) as gateway,
        grpc.aio.insecure_channel(gateway.grpc) as channel,
        aiohttp.ClientSession() as session,
    ):
        stats, load = f"{gateway.http}/v2/models/stats", f"{gateway.http}/v2/repository/index"
        assert await get(session, f"{gateway.http}/v2/health/ready") == (200, {"ready": True})
        async with session.get(f"{gateway.http}/v2") as reply:
            assert (reply.status, reply.headers["WWW-Authenticate"]) == (401, "Bearer")
        assert (await get(session, f"{gateway.http}/v2", Authorization=bearer))[0] == 200
        assert await get(session, stats, Authorization=bearer) == (
            403,
            {"error": "This API is restricted, expecting header 'admin-key'"},
        )
        assert (await get(session, stats, Authorization=bearer, admin_key="open"))[0] == 200
        async with session.post(load, headers={"Authorization": bearer}) as reply:
            assert reply.status == 403
        assert (await grpc_code(channel, "ServerMetadata"))[0] is grpc.StatusCode.UNAUTHENTICATED
        assert (await grpc_code(channel, "ServerMetadata", authorization=bearer))[0] is grpc.StatusCode.OK
        assert await grpc_code(channel, "ModelStatistics", authorization=bearer) == (
            grpc.StatusCode.PERMISSION_DENIED,
            "This protocol is restricted, expecting header 'triton-grpc-protocol-admin-key'",
        )
        allowed = {"authorization": bearer, "triton_grpc_protocol_admin_key": "open"}
        assert (await grpc_code(channel, "ModelStatistics", **allowed))[0] is grpc.StatusCode.OK
        async with session.get(f"http://127.0.0.1:{settings.ports.metrics_port}/metrics") as reply:
            metrics = await reply.text()
        assert re.search(r'^mqinfer_gateway_denied_total\{.*reason="unauthenticated"\} 2.0$', metrics, re.MULTILINE)
        assert re.search(r'^mqinfer_gateway_denied_total\{.*reason="not_authorized"\} 3.0$', metrics, re.MULTILINE)
        serving = f"http://127.0.0.1:{settings.ports.tfs_rest_port}/monitoring/prometheus/metrics"
        async with session.get(serving, headers={"Authorization": bearer}) as reply:
            assert reply.status == 403
        allowed = {"Authorization": bearer, "admin-key": "open"}
        async with session.get(serving, headers=allowed) as reply:
            assert reply.headers["Content-Type"].startswith("text/plain")
            assert "mqinfer_gateway_denied_total" in await reply.text()


@pytest.mark.parametrize("field", ["http_port", "grpc_port"])
def test_a_port_that_is_in_use(fleet: Fleet, unique: Callable[[str], str], field: str) -> None:
    """One message with the port, the option and what to do; what was open by then is closed again."""
    settings = settings_of()

    async def main() -> None:
        async with running(fleet, settings, unique("gw")):
            other = settings_of(**{field: getattr(settings.ports, field)})
            option = field.replace("_", "-")
            message = f"can't listen on 127.0.0.1:{getattr(settings.ports, field)} .* with --{option}"
            with pytest.raises(MqinferError, match=message):
                check_ports(other)
            with pytest.raises(MqinferError, match=message):
                async with running(fleet, other, unique("gw")):
                    pass

    asyncio.run(main())
    check_ports(settings)


async def test_a_unix_socket(fleet: Fleet, unique: Callable[[str], str], tmp_path: Path) -> None:
    """TensorFlow Serving's gRPC is there alone, for this user and group, in place of one left behind, none in use.

    Its callers count as one, and that one loses its connections where it does not take replies.
    """
    path, request = tmp_path / "tfs.sock", tfs_class("GetModelStatusRequest")(model_spec={"name": "simple"})
    method = "/tensorflow.serving.ModelService/GetModelStatus"
    left = socket.socket(socket.AF_UNIX)
    left.bind(str(path))
    left.close()
    settings = settings_of(grpc_port=0, tfs_grpc_socket=path)
    check_ports(settings)
    async with running(fleet, settings, unique("gw")):
        assert stat.S_IMODE(path.stat().st_mode) == 0o660
        with pytest.raises(
            MqinferError, match=f"can't listen on unix:{path} .Address already in use.* --tfs-grpc-socket"
        ):
            check_ports(settings_of(tfs_grpc_socket=path))
        async with grpc.aio.insecure_channel(f"unix:{path}") as channel:
            for _ in range(2):
                reply = await channel.unary_unary(method)(request.SerializeToString(), timeout=PATIENCE)
                status = tfs_class("GetModelStatusResponse").FromString(reply)
                assert [each.state for each in status.model_version_status] == [30]
                close_connections({name_connection("unix:", 1)})  # as of one that does not take its replies
                await until(lambda: channel.get_state() is not grpc.ChannelConnectivity.READY)
    assert not path.exists()
    path.write_text("mine")
    with pytest.raises(MqinferError, match="a file that is no socket"):
        check_ports(settings)


async def test_metrics_under_triton_s_names(fleet: Fleet, unique: Callable[[str], str]) -> None:
    """With the option, `/metrics` has what all workers count, by model and version, and what is pending here."""
    settings = settings_of(metrics_port=free_port(), triton_metrics=True)
    async with running(fleet, settings, unique("gw")) as gateway, aiohttp.ClientSession() as session:

        async def read() -> dict[tuple[str, str], float]:
            async with session.get(f"http://127.0.0.1:{settings.ports.metrics_port}/metrics") as reply:
                lines = re.findall(r"^(nv_\w+)\{([^}]*)\} (\S+)$", await reply.text(), re.MULTILINE)
            return {(name, labels): float(value) for name, labels, value in lines}

        before, labels = await read(), 'model="identity_fp32",version="2"'
        for body, status in ((IDENTITY, 200), ({"inputs": []}, 400), (IDENTITY, 200)):
            async with session.post(f"{gateway.http}/v2/models/identity_fp32/infer", json=body) as reply:
                assert reply.status == status
        async with asyncio.timeout(PATIENCE):  # a reply is counted once it is sent
            while (after := await read())[key := ("nv_inference_request_success", labels)] - before[key] < 2:
                pass
        for name in ("request_success", "count", "exec_count"):
            key = f"nv_inference_{name}", labels
            assert after[key] - before[key] == 2, name
        assert after["nv_inference_request_duration_us", labels] > before["nv_inference_request_duration_us", labels]
        assert after["nv_inference_pending_request_count", labels] == 0
        reasons = {labels for name, labels in after if name == "nv_inference_request_failure" and "fp32" in labels}
        assert len(reasons) == 2 * 4


def test_ports_that_are_off(fleet: Fleet, unique: Callable[[str], str], caplog: pytest.LogCaptureFixture) -> None:
    """Nothing listens there, and the line that names the ports leaves them out."""
    caplog.set_level("INFO", "mqinfer.gateway")

    async def main() -> None:
        async with (
            running(fleet, settings_of(grpc_port=0), unique("gw")) as gateway,
            aiohttp.ClientSession() as session,
        ):
            assert (await get(session, f"{gateway.http}/v2/health/live"))[0] == 200

    asyncio.run(main())
    (line,) = (record.getMessage() for record in caplog.records if record.getMessage().startswith("ready:"))
    assert "HTTP on 127.0.0.1:" in line
    assert "gRPC" not in line


async def test_files_with_faults(fleet: Fleet, unique: Callable[[str], str], files: Files, tmp_path: Path) -> None:
    """Options that can't be used end the start with their names."""
    wrong = tmp_path / "wrong.pem"
    wrong.write_text("no certificate")
    faults: dict[str, dict[str, Any]] = {
        "--tls-cert": {"tls": TlsFiles(wrong, files.server.key)},
        "--client-ca": {"tls": replace(files.server, client_ca=tmp_path / "absent")},
        "key file": {"keys": tmp_path / "absent"},
        "--restrict": {"restrict": ["x"]},
    }
    for match, fault in faults.items():
        with pytest.raises(ConfigError, match=match):
            async with running(fleet, settings_of(**fault), unique("gw")):
                pass


async def test_a_name_that_another_process_has(fleet: Fleet, unique: Callable[[str], str]) -> None:
    """The second gateway of a name is refused, the first one goes on."""
    name = unique("gw")
    async with running(fleet, settings_of(), name) as gateway:
        with pytest.raises(NameTaken):
            async with running(fleet, settings_of(), name):
                pass
        assert not gateway.ended.done()


async def test_no_broker(fleet: Fleet, unique: Callable[[str], str]) -> None:
    """As every program that finds none: it ends with an error that a restart may help."""
    nowhere = replace(fleet, url=f"mqtt://127.0.0.1:{free_port()}")
    with pytest.raises(BrokerUnreachable):
        async with running(nowhere, settings_of(), unique("gw")):
            pass
