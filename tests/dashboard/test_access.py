"""The page at a broker with access rules: what it shows with and without a login, and that it can publish nothing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from mqinfer.broker import BrokerAddress
from mqinfer.broker.mosquitto import BrokerFolder, Login, Ports, Role
from mqinfer.broker.mosquitto.serving import guarded
from mqinfer.protocol.states import WorkerStatus
from mqinfer.protocol.topics import Topics
from tests.dashboard.chromium import PageOf, Watched, script
from tests.dashboard.numbered import CLASSES, mask_of, picture_of
from tests.dashboard.programs import Programs
from tests.dashboard.publishing import Frames, Load, Publisher, Stream, loaded
from tests.ports import free_port

pytestmark = [pytest.mark.broker, pytest.mark.slow]  # processes

NOT_AUTHORIZED = 0x87
_STREAM = Stream("car-1", "front", "numbers", "gpu.0")


@dataclass(frozen=True, slots=True)
class SecuredSite:
    """A broker with access rules, a vehicle that publishes, and a dashboard without a login of its own."""

    url: str
    passwords: dict[str, Login]
    programs: Programs
    addresses: dict[str, BrokerAddress]


@pytest.fixture(scope="module")
def secured_site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredSite]:
    """Started once for the tests of this file; a vehicle and a worker publish all the time."""
    # Mosquitto becomes another user under root, to whom pytest's own folders are closed.
    with TemporaryDirectory(prefix="mqinfer-secured-") as place:
        Path(place).chmod(0o755)
        port = free_port()
        folder = BrokerFolder(Path(place) / "broker")
        folder.init(ports=Ports(1, port, bind="127.0.0.1"))
        roles = {"wall": Role.DASHBOARD, "car-1": Role.VEHICLE, "gpu": Role.WORKER}
        passwords = {name: folder.add(role, name, by_password=True) for name, role in roles.items()}
        addresses = {
            name: BrokerAddress.parse(f"mqtts://{name}:{login.password}@127.0.0.1:{port}", ca_file=login.ca_file)
            for name, login in passwords.items()
        }
        broker = f"mqtts://127.0.0.1:{port}"
        masks, pictures = ([make(number) for number in range(16)] for make in (mask_of, picture_of))
        load = Load(addresses["car-1"], [_STREAM], Frames.of(masks, pictures), rate=10, results=addresses["gpu"])
        with (
            guarded(folder, 0),
            Programs(tmp_path_factory.mktemp("secured"), broker) as programs,
            Publisher(addresses["gpu"]) as worker,
            Publisher(addresses["car-1"]) as vehicle,
            loaded(load),
        ):
            worker.card("numbers", CLASSES)
            worker.worker("gpu.0", "numbers")
            vehicle.client("car-1", source="front", model="numbers")
            ca_file = passwords["wall"].ca_file
            assert ca_file is not None
            url, _ = programs.dashboard("--ca-file", ca_file)
            yield SecuredSite(url, passwords, programs, addresses)


def log_in(watched: Watched, user: str, password: str) -> None:
    """Fill in the form."""
    form = watched.page.get_by_test_id("login-form")
    form.wait_for(state="visible")
    form.locator("input").nth(0).fill(user)
    form.locator("input[type='password']").fill(password)
    form.locator("button[type='submit']").click()


def test_without_a_login_there_is_a_form_and_nothing_else(secured_site: SecuredSite, page_of: PageOf) -> None:
    """The broker refuses the page, so it asks, which is no fault; a wrong password is, and the name stays."""
    watched = page_of(secured_site.url, wait=False)
    form = watched.page.get_by_test_id("login-form")
    form.wait_for(state="visible")
    assert form.get_by_role("alert").count() == 0
    for _ in range(2):
        log_in(watched, "wall", "wrong")
        form.get_by_role("alert").wait_for(state="visible")
        assert form.get_by_role("alert").inner_text() == "Wrong name or password."
        assert form.locator("input").nth(0).input_value() == "wall"
        watched.frames(30)
        assert watched.attribute("tile", "data-key") == []


def test_a_dashboard_login_sees_all_views(secured_site: SecuredSite, page_of: PageOf) -> None:
    """Tiles with pictures, streams, workers, models with rates, and the log."""
    watched = page_of(secured_site.url, wait=False)
    log_in(watched, "wall", secured_site.passwords["wall"].password or "")
    watched.wait_for_tiles(1)
    watched.page.wait_for_selector("[data-testid='tile-picture'][data-sequence]:not([data-sequence=''])")
    for view, row in (
        ("streams", "stream-row"),
        ("workers", "worker-row"),
        ("models", "model-row"),
        ("log", "log-row"),
    ):
        watched.show(view)
        watched.page.get_by_test_id(row).first.wait_for(state="visible")
    assert watched.attribute("login-form", "data-testid") == []


def test_a_dashboard_login_publishes_nothing(secured_site: SecuredSite, page_of: PageOf) -> None:
    """Whatever the page's user sends by hand is refused with 0x87, and requests can't be read."""
    watched = page_of(secured_site.url, wait=False)
    root = Topics().root
    topics = [
        f"{root}/models/numbers/infer/wall",
        f"{root}/workers/gpu.0/infer/numbers/wall",
        f"{root}/models/numbers/cancel/wall",
        f"{root}/models/numbers/card",
        f"{root}/workers/gpu.0/state",
        f"{root}/clients/wall/state",
        f"{root}/clients/car-1/preview/front",
        f"{root}/results/numbers/car-1/00",
        f"{root}/control/all/wall/repository/index",
        f"{root}/control/gpu/wall/v2/repository/index",
        "anything",
    ]
    found: Any = watched.page.evaluate(
        script("bare_mqtt"),
        {
            "url": secured_site.url.replace("http", "ws") + "mqtt",
            "user": "wall",
            "password": secured_site.passwords["wall"].password,
            "subscribe": [f"{root}/results/+/+/+", f"{root}/models/+/infer/+", "#"],
            "publish": topics,
            "expect": 0,
            "timeoutMs": 60_000,
        },
    )
    assert found["connack"] == 0
    assert found["suback"][0] == 0
    assert found["puback"] == [NOT_AUTHORIZED] * len(topics), found


def test_a_relay_with_a_login_needs_no_form(secured_site: SecuredSite, page_of: PageOf, tmp_path: Path) -> None:
    """The relay's own login is used, and a browser that sends another gets no more rights by it."""
    login = secured_site.passwords["wall"]
    assert login.password is not None
    assert login.ca_file is not None
    secret = tmp_path / "password"
    secret.write_text(login.password)
    secret.chmod(0o600)
    broker = secured_site.programs.broker.replace("://", "://wall@")
    url, program = secured_site.programs.dashboard("--ca-file", login.ca_file, "--password-file", secret, broker=broker)
    watched = page_of(url)
    watched.wait_for_tiles(1)
    assert watched.attribute("login-form", "data-testid") == []
    program.stop()


def test_the_form_for_a_key(secured_site: SecuredSite, page_of: PageOf, tmp_path: Path) -> None:
    """A browser sends it as its own page: a wrong key is refused with words, the right one opens the page."""
    keys = tmp_path / "keys.toml"
    keys.write_text('[wall]\nkey = "a-key-of-20-letters-x"\nrights = ["watch"]\n', encoding="utf-8")
    keys.chmod(0o600)
    ca_file = secured_site.passwords["wall"].ca_file
    assert ca_file is not None
    url, program = secured_site.programs.dashboard("--ca-file", ca_file, "--keys", keys)
    page = page_of(url, wait=False).page
    for key in ("another-key-of-20-letters", "a-key-of-20-letters-x"):
        page.get_by_label("Key").fill(key)
        page.get_by_role("button").click()
        if key.startswith("another"):
            page.get_by_role("alert").filter(has_text="key").wait_for(state="visible")
    page.get_by_test_id("login-form").wait_for(state="visible")  # the broker's own, behind it
    program.stop()


def test_states_of_others_can_not_be_forged(secured_site: SecuredSite, page_of: PageOf) -> None:
    """A vehicle that publishes a state or card in another's place changes no row."""
    watched = page_of(secured_site.url, wait=False)
    log_in(watched, "wall", secured_site.passwords["wall"].password or "")
    watched.wait_for_tiles(1)
    with Publisher(secured_site.addresses["car-1"]) as vehicle:
        vehicle.worker("gpu.0", "numbers", status=WorkerStatus.LOST)
        vehicle.card("forged")
        vehicle.flush()
    watched.show("models")
    watched.frames(60)
    assert watched.page.get_by_text("forged").count() == 0
    watched.show("workers")
    assert watched.attribute("worker-row", "data-status") == ["ready"]
