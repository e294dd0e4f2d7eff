"""TLS: only files that fit are taken, and with them the server speaks HTTPS. The keys are of no other use."""

import http.client
import re
import signal
import ssl
import subprocess
import sys
from pathlib import Path

import pytest

from legato.cli.main import main
from legato.cli.serving.tls import check_tls
from legato.core.config import ServerConfig
from legato.core.errors import ConfigError

CERTIFICATES = Path(__file__).parent / "certificates"


def server_with(certificate: str | None, key: str | None) -> ServerConfig:
    certfile, keyfile = (None if name is None else str(CERTIFICATES / name) for name in (certificate, key))
    return ServerConfig(ssl_certfile=certfile, ssl_keyfile=keyfile)


def test_files_that_fit_mean_tls_and_none_mean_none() -> None:
    assert check_tls(server_with("localhost.crt.pem", "localhost.key.pem"))
    assert check_tls(server_with("both.pem", None)), "one file may hold both"
    assert not check_tls(ServerConfig())


@pytest.mark.parametrize(
    ("certificate", "key", "message"),
    [
        (None, "localhost.key.pem", "--ssl-keyfile is given without --ssl-certfile"),
        ("localhost.crt.pem", "other.key.pem", r"do not make a pair: .*mismatch"),
        ("localhost.crt.pem", None, "and a key in the same file do not make a pair"),
        ("localhost.crt.pem", "locked.key.pem", "without a password"),
        ("localhost.key.pem", "localhost.key.pem", "do not make a pair"),
        ("nowhere.pem", "localhost.key.pem", r"--ssl-certfile .*nowhere\.pem: No such file"),
        ("localhost.crt.pem", "nowhere.pem", r"--ssl-keyfile .*nowhere\.pem: No such file"),
    ],
)
def test_files_that_do_not_fit_are_refused(certificate: str | None, key: str | None, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        check_tls(server_with(certificate, key))
    assert "\n" not in str(caught.value)


def test_wrong_pair_is_one_line_before_the_model_is_looked_for(capsys: pytest.CaptureFixture[str]) -> None:
    flags = [
        *("--ssl-certfile", str(CERTIFICATES / "localhost.crt.pem")),
        *("--ssl-keyfile", str(CERTIFICATES / "other.key.pem")),
    ]
    assert main(["serve", "/nowhere", *flags]) == 2
    error = capsys.readouterr().err
    assert error.startswith("legato: error: --ssl-certfile ")
    assert error.count("\n") == 1


def test_server_with_a_certificate_speaks_https(tiny_model: Path) -> None:
    certfile, keyfile = (str(CERTIFICATES / f"localhost.{kind}.pem") for kind in ("crt", "key"))
    flags = ["--ssl-certfile", certfile, "--ssl-keyfile", keyfile, "--port", "0"]
    command = [sys.executable, "-m", "legato", "serve", str(tiny_model), *flags]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        found = re.match(r"ready on https://127\.0\.0\.1:(\d+) ", process.stdout.readline())
        assert found
        context = ssl.create_default_context(cafile=certfile)
        connection = http.client.HTTPSConnection("localhost", int(found[1]), timeout=60, context=context)
        connection.request("GET", "/v1/models")
        assert connection.getresponse().status == 200
        connection.close()
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)
    assert process.returncode == 0
