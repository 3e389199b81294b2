"""`mqinfer support-bundle`: what helpers need is in it, and no secret, however it got there."""

from __future__ import annotations

import json
import os
import stat
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from mqinfer.cli.support import Redaction
from tests.commands import run_main

SECRETS = {
    "the password": "correct-horse-battery",
    "that of a URL": "pass-of-the-url",
    "the group": "0b3dc8538e0041e24fa90fe351ae7bb7",
    "a caller's key": "5b0e7c1f93a84d26b7aa",
    "a header's value": "let-me-in-please",
    "a cloud's key": "wJalrXUtnFEMI/K7MDENG/bPx.RfiCY",
    "a private key": "MHcCAQEEIIGkz0b3cWZb2vGSbq9sT5mQ",
    "an unknown password": "hunter2-and-more",
    "an unknown bearer": "eyJhbGciOiJIUzI1NiJ9.e30.abc",
}
PEM = f"-----BEGIN EC PRIVATE KEY-----\n{SECRETS['a private key']}\n-----END EC PRIVATE KEY-----\n"


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with a secret in each place where one may be, and a log that has all of them."""
    for name in [each for each in os.environ if each.startswith("MQINFER_")]:
        monkeypatch.delenv(name)
    (tmp_path / "client.key").write_text(PEM)
    key, header, group = (SECRETS[name] for name in ("a caller's key", "a header's value", "the group"))
    (tmp_path / "keys.toml").write_text(f'[ann]\nkey = "{key}"\nrights = ["infer"]\n')
    (tmp_path / "password").write_text(SECRETS["the password"] + "\n")
    (tmp_path / "mqinfer.toml").write_text(
        f'[worker]\ngroup = "{group}"\ncapacity = 17\n'
        f'[gateway]\nkeys = "{tmp_path / "keys.toml"}"\nrestrict = ["statistics:admin={header}"]\n'
    )
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRETS["a cloud's key"])
    monkeypatch.setenv("MQINFER_WORKER_KEY_FILE", str(tmp_path / "client.key"))
    monkeypatch.setenv("MQINFER_WORKER_GROUP", SECRETS["the group"])
    monkeypatch.setenv("MQINFER_REPLAY_BROKER", f"mqtts://ann:{SECRETS['that of a URL']}@broker:8883")
    monkeypatch.setenv("MQINFER_REPLAY_PASSWORD_FILE", str(tmp_path / "password"))
    lines = [f"a line of the log with {value} in it" for name, value in SECRETS.items() if "unknown" not in name]
    lines += [f'password = "{SECRETS["an unknown password"]}"', f"Authorization: Bearer {SECRETS['an unknown bearer']}"]
    (tmp_path / "worker.log").write_text("\n".join([*lines, PEM, "the last line"]))
    return tmp_path


def bundle(folder: Path, *options: object) -> dict[str, str]:
    """Write a bundle; return its parts."""
    file = folder / f"support-{len(list(folder.iterdir()))}.zip"
    command = (
        "support-bundle",
        file,
        "--log",
        folder / "worker.log",
        "--config",
        folder / "mqinfer.toml",
        "--lines",
        0,
    )
    assert run_main(*command, *options) == 0
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    with zipfile.ZipFile(file) as archive:
        return {name: archive.read(name).decode() for name in archive.namelist()}


def test_no_secret_is_in_it(machine: Path, broker_url: str, unique: Callable[[str], str]) -> None:
    """Neither one that this machine has, nor one that only a log has; versions, options, states and logs are there."""
    parts = bundle(machine, "--broker", broker_url, "--root", unique("root"), "--timeout", 0.1)
    assert {name for name, secret in SECRETS.items() for text in parts.values() if secret in text} == set()
    assert {"options.json", "versions.json", "status.json", "logs/0-worker.log"} == parts.keys()
    options = json.loads(parts["options.json"])
    assert options["environment"]["MQINFER_WORKER_GROUP"] == "***"
    assert options["environment"]["MQINFER_WORKER_KEY_FILE"] == str(machine / "client.key")
    assert options["environment"]["MQINFER_REPLAY_BROKER"] == "mqtts://***@broker:8883"
    assert options["file"][str(machine / "mqinfer.toml")]["worker"] == {"group": "***", "capacity": 17}
    assert "numpy" in json.loads(parts["versions.json"])["packages"]
    assert json.loads(parts["status.json"])["servers"] == []
    assert parts["logs/0-worker.log"].endswith("the last line")


@pytest.mark.parametrize(
    "line",
    [
        "rtsp://admin:ab/cd-hunter2@10.0.0.1/stream",
        "https://account.blob.core/models?sv=1&sig=hunter2%3D&se=2",
        "https://bucket.s3/models?X-Amz-Signature=hunter2",
        "http://dashboard/#key=hunter2",
        "Authorization: Basic hunter2==",
        r'{"body": "{\"password\": \"hunter2\"}", "authorization": "Basic hunter2"}',
        "Set-Cookie: session=hunter2; second=hunter2",
        "AccountKey=hunter2;EndpointSuffix=core",
        "passphrase: hunter2",
        "aws_access_key_id = hunter2",
        "admin-key: hunter2",
    ],
)
def test_secrets_that_nobody_named(line: str) -> None:
    """They are known by what stands before them, in the logs of other programs too; JSON stays JSON."""
    cleaned = Redaction().clean(line)
    assert "hunter2" not in cleaned
    if line.startswith("{"):
        assert json.loads(cleaned).keys() == json.loads(line).keys()


def test_a_password_that_a_url_escapes() -> None:
    """A broker's log has it as it is."""
    redaction = Redaction()
    redaction.add_named("MQINFER_BROKER", "mqtt://car:correct%20horse@broker")
    assert redaction.clean("login car, correct horse") == "login car, ***"


def test_a_pipe_as_a_log(machine: Path) -> None:
    """Nobody waits for who would write it."""
    os.mkfifo(machine / "pipe")
    parts = bundle(machine, "--broker", "mqtt://127.0.0.1:1", "--timeout", 0.1, "--log", machine / "pipe")
    assert "is no file" in parts["logs/1-pipe.error"]


def test_where_something_is_broken(machine: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What can't be read is said in its place, and the rest is there; a file that exists is never replaced."""
    (machine / "worker.log").unlink()
    parts = bundle(machine, "--broker", "mqtt://127.0.0.1:1", "--password-file", machine / "password")
    assert "logs/0-worker.log.error" in parts
    assert parts["status.json.error"]
    assert "options.json" in parts
    (file,) = machine.glob("support-*.zip")
    assert run_main("support-bundle", file, "--broker", "mqtt://127.0.0.1:1", "--lines", 0) == 2
    assert "name another file" in capsys.readouterr().err


def test_a_file_with_a_password(machine: Path) -> None:
    """It is known once a variable or an option names the file; usual words are not hidden."""
    redaction = Redaction()
    assert redaction.add_named("password_file", str(machine / "password")) == str(machine / "password")
    assert redaction.add_named("group", "workers") == "***"
    unknown = '{"token": null, "secret": "a b c d", "groups": 4} --group xyz db_password: hunter2'
    clean = '{"token": null, "secret": "***", "groups": 4} --group *** db_password: ***'
    assert redaction.clean(unknown) == clean
    assert redaction.clean(f"workers: {SECRETS['the password']}") == "workers: ***"
