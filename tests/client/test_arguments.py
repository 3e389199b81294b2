"""What callers state about a client and its requests: what is wrong is an error at once, and None is the default."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.main import get_command

from mqinfer import AsyncClient, Client, ClientOptions, ControlClient, TlsOptions
from mqinfer.broker.address import BrokerAddress, Variable
from mqinfer.cli.app import app
from mqinfer.client.options import check_timeout
from mqinfer.errors import ConfigError, Expired, MqinferError
from mqinfer.protocol.control import Call, Operation
from tests.asynchronous import in_loop
from tests.client.conftest import MakeClient

pytestmark = pytest.mark.usefixtures("patient")

X = np.arange(4, dtype=np.float32).reshape(1, 4)


def every_call(client: Client, **options: Any) -> Iterator[Callable[[], Any]]:
    """Yield each way to ask with these options, blocking and asyncio."""
    yield lambda: client.infer("echo", {"x": X}, **options)
    yield lambda: client.submit("echo", {"x": X}, **options)
    yield lambda: client.stream("echo", **options)

    def asynchronous(use: Callable[[AsyncClient], Any]) -> Callable[[], Any]:
        async def run() -> None:
            async with AsyncClient("memory://arguments") as other:
                found = use(other)
                if asyncio.iscoroutine(found):
                    await found

        return lambda: asyncio.run(run())

    yield asynchronous(lambda other: other.infer("echo", {"x": X}, **options))
    yield asynchronous(lambda other: other.submit("echo", {"x": X}, **options))
    yield asynchronous(lambda other: other.stream("echo", **options))


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"tiemout": 5}, "'tiemout'; did you mean 'timeout'"),
        ({"encodings": "lz4"}, "did you mean 'encoding'"),
        ({"output_encodign": "lz4"}, "did you mean 'output_encoding'"),
        ({"Version": 1}, "did you mean 'version'"),
        ({"zzz": 1}, "known: timeout, capture, classification"),
        ({"timeout": 5, "zzz": 1, "version": "2"}, "'zzz'"),
    ],
)
def test_an_argument_that_does_not_exist(client: Client, wrong: dict[str, Any], words: str) -> None:
    """It is a TypeError at once, with the name that was probably meant, and no request is made."""
    for call in every_call(client, **wrong):
        with pytest.raises(TypeError, match=words):
            call()
    assert client.counters().submitted == 0


def test_an_array_without_its_inputs_name(client: Client) -> None:
    """The commonest mistake says what is expected."""
    inputs: Any = X
    for send in (client.infer, client.submit):
        with pytest.raises(TypeError, match=r"expected arrays by input name, such as \{'input': array\}, got ndarray"):
            send("echo", inputs)


@pytest.mark.parametrize("timeout", [0, 0.0, -1, float("nan"), float("inf"), 1e7])
def test_a_timeout_that_is_not_possible(client: Client, timeout: float) -> None:
    """Each call says so at once: none waits, and none sends a request that has expired before."""
    for call in every_call(client, timeout=timeout):
        with pytest.raises(ConfigError, match=r"timeout of .* s is not possible; expected more than 0"):
            call()
    with pytest.raises(ConfigError, match="timeout"):
        client.card("echo", timeout)
    assert client.counters().submitted == 0


@pytest.mark.parametrize("timeout", [0, -1.0, float("nan")])
def test_a_timeout_of_control_and_connection(url: str, timeout: float) -> None:
    """The same holds for operators, and for the connection."""
    with ControlClient(url) as control:
        for call in (
            lambda: control.ask(Call(Operation.INDEX), timeout=timeout),
            lambda: control.load("m", timeout=timeout),
            lambda: control.wait_for("server", timeout),
        ):
            with pytest.raises(ConfigError, match="timeout"):
                call()
    for make in (Client, ControlClient):
        with pytest.raises(ConfigError, match="timeout"):
            make(url, connect_timeout=timeout)


def test_no_timeout_is_the_clients(url: str, make_client: MakeClient, hand: Any) -> None:
    """None, or nothing, means `ClientOptions.timeout`; the deadline that travels with the request shows it."""
    client = make_client(url, options=ClientOptions(timeout=77.0))
    for submit in (client.submit, partial(client.submit, timeout=None)):
        submit("manual", {"x": X})
        assert 70e6 < hand.next().timeout_us <= 77e6
    with client.stream("manual") as stream:
        stream.put({"x": X})
        assert 70e6 < hand.next().timeout_us <= 77e6
    client.submit("manual", {"x": X}, timeout=5)
    assert hand.next().timeout_us <= 5e6
    quick = make_client(url, options=ClientOptions(timeout=0.02))
    with pytest.raises(Expired, match=r"within 0\.02 s"):
        quick.infer("manual", {"x": X}, timeout=None)


@in_loop
async def test_no_timeout_is_the_asyncio_clients(url: str, hand: Any) -> None:
    """As with the blocking client, also where a request waits for room first."""
    async with AsyncClient(url, options=ClientOptions(timeout=0.02, max_pending=1)) as client:
        first = client.submit("manual", {"x": X}, timeout=60)
        await asyncio.sleep(0)
        with pytest.raises(Expired, match=r"1 requests are pending, .* within 0\.02 s"):
            await client.infer("manual", {"x": X}, timeout=None)
        hand.answer(await asyncio.to_thread(hand.next), {"y": X})
        await first
        with pytest.raises(Expired, match=r"within 0\.02 s"):
            await client.infer("manual", {"x": X})


@pytest.mark.parametrize(
    "wrong",
    [
        {"timeout": 0},
        {"timeout": float("nan")},
        {"window": 0},
        {"max_pending": 0},
        {"patience": -1},
        {"settling": float("nan")},
        {"backoff": -0.1},
    ],
)
def test_options_that_could_never_send(wrong: dict[str, Any]) -> None:
    """A window of 0 would leave every request queued: it is an error where the options are made."""
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        ClientOptions(**wrong)
    with pytest.raises(TypeError, match="windwo"):
        ClientOptions(windwo=3)  # type: ignore[call-arg]


TLS = TlsOptions("ca.crt", "me.crt", Path("me.key"))


@pytest.mark.parametrize("make", [Client, AsyncClient, ControlClient])
def test_certificates_are_stated_beside_the_url(make: Callable[..., Any]) -> None:
    """Files that are not there, an unencrypted URL, and something else than `TlsOptions` are said as such."""

    def connect(url: str | BrokerAddress, tls: Any) -> None:
        made = make(url, tls=tls, connect_timeout=1)
        if isinstance(made, AsyncClient):
            asyncio.run(made.open())

    with pytest.raises(ConfigError, match=r"me\.crt can't be read"):
        connect("mqtts://127.0.0.1:1", TLS)
    with pytest.raises(ConfigError, match=r"me\.crt"):
        connect(BrokerAddress("127.0.0.1", 1), TLS)
    for tls in (TLS, TlsOptions()):  # also where the system's authorities would do: it was meant to be encrypted
        with pytest.raises(ConfigError, match=r"mqtt://.* is not encrypted.*use mqtts://"):
            connect("mqtt://127.0.0.1:1", tls)
    with pytest.raises(TypeError, match="expected TlsOptions"):
        connect("mqtts://127.0.0.1:1", "ca.crt")


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Set mqinfer's variables, and those alone."""

    def put(**variables: str) -> None:
        for name in [name for name in os.environ if name.startswith("MQINFER_")]:
            monkeypatch.delenv(name)
        for name, value in variables.items():
            monkeypatch.setenv(f"MQINFER_{name}", value)

    return put


@pytest.mark.usefixtures("echo")
def test_clients_of_the_environment(url: str, environment: Callable[..., None]) -> None:
    """Broker and name come from the variables, all else is as stated."""
    environment(BROKER=url, NAME="from-env", CA_FILE="")
    with Client.from_env(options=ClientOptions(window=2)) as client:
        assert client.name == "from-env"
        assert client.infer("echo", {"x": X}).outputs["x"].tolist() == X.tolist()

    async def ask() -> None:
        async with AsyncClient.from_env() as asynchronous:
            assert (await asynchronous.infer("echo", {"x": X})).outputs["x"].tolist() == X.tolist()

    asyncio.run(ask())
    with ControlClient.from_env() as control, pytest.raises(MqinferError, match="no server"):
        control.ask(Call(Operation.INDEX))


@pytest.mark.parametrize("make", [Client.from_env, AsyncClient.from_env, ControlClient.from_env])
def test_an_environment_that_is_not_enough(make: Callable[[], object], environment: Callable[..., None]) -> None:
    """What is missing or wrong is said by the variable's name or by the fault."""
    for broker in ({}, {"BROKER": ""}):
        environment(**broker)
        with pytest.raises(ConfigError, match="MQINFER_BROKER is not set; set it to the broker's URL"):
            make()
    environment(BROKER="mqtt://localhost", CA_FILE="ca.crt")
    with pytest.raises(ConfigError, match="not encrypted"):
        make()


def test_the_environments_certificates(environment: Callable[..., None]) -> None:
    """The three files are those that the command line takes."""
    environment(BROKER="mqtts://127.0.0.1:1", CA_FILE="a.crt", CERT_FILE="b.crt", KEY_FILE="c.key")
    with pytest.raises(ConfigError, match=r"b\.crt can't be read"):
        Client.from_env()


def test_one_table_of_variables() -> None:
    """The command line reads the variables of the table; a password is no option, since others could read it there."""
    command: Any = get_command(app)
    taken = {option.envvar[-1] for option in command.commands["infer"].params if option.envvar}
    assert taken >= {each for each in Variable if each != Variable.PASSWORD}


def test_a_client_without_extras_imports_little() -> None:
    """The whole of the client's side is imported with mqinfer, and nothing heavy with it."""
    program = (
        "import sys, mqinfer\n"
        "print(sorted({'tensorflow', 'cv2', 'rosbags', 'onnxruntime', 'mcap', 'typer', 'rich'} & set(sys.modules)))"
    )
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert found.stdout.strip() == "[]"


def test_every_number_of_the_options_is_documented() -> None:
    """Each field of ClientOptions stands in its docstring."""
    lines = str(ClientOptions.__doc__)  # Python 3.13 takes the indentation off
    assert all(f"    {field.name}: " in lines for field in fields(ClientOptions))
    assert check_timeout(1.5) == 1.5
