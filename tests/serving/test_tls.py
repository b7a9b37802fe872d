"""The command with certificates: clients with a valid one are admitted."""

import datetime as dt
import ipaddress
import json
import os
import re
import signal
import ssl
import subprocess
import sys
import urllib.error
import urllib.request

import pytest

pytest.importorskip("fastapi", reason="the extra 'serve' is not installed")
pytest.importorskip("cryptography", reason="the extra 'flare' is not installed")

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from fastapi import FastAPI

from anyparty.serving import http_server
from anyparty.serving.service_settings import ServiceLimits

pytestmark = pytest.mark.net


def write_certificate(folder, name, issuer=None):
    """Write NAME.pem and NAME-key.pem; without an issuer, write a CA's certificate."""
    key, now = ec.generate_private_key(ec.SECP256R1()), dt.datetime.now(dt.UTC)
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    above, signs = issuer or (subject, key)
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(above)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(hours=1))
        .not_valid_after(now + dt.timedelta(hours=1))
        .add_extension(x509.BasicConstraints(ca=issuer is None, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .sign(signs, hashes.SHA256())
    )
    (folder / f"{name}.pem").write_bytes(made.public_bytes(serialization.Encoding.PEM))
    pem, plain = serialization.Encoding.PEM, serialization.NoEncryption()
    (folder / f"{name}-key.pem").write_bytes(key.private_bytes(pem, serialization.PrivateFormat.PKCS8, plain))
    return subject, key


def test_clients_with_a_certificate_are_admitted(run, tmp_path):
    authority, stranger = write_certificate(tmp_path, "authority"), write_certificate(tmp_path, "stranger-authority")
    write_certificate(tmp_path, "service", authority)
    write_certificate(tmp_path, "client", authority)
    write_certificate(tmp_path, "stranger", stranger)
    words = ["--port", "0", "--tls-cert", tmp_path / "service.pem", "--tls-key", tmp_path / "service-key.pem",
             "--client-ca", tmp_path / "authority.pem"]  # fmt: skip
    command = [sys.executable, "-m", "anyparty", "serve", str(run), *map(str, words)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ) as process:  # noqa: S603
        try:
            got = process.stdout.readline()
            port = re.search(r"https://127.0.0.1:(\d+)", got)[1]
            assert ask(tmp_path, port, "client")["answers"][0]["took_part"] == ["bank", "shop"]
            for name in (None, "stranger"):
                with pytest.raises((urllib.error.URLError, OSError)):
                    ask(tmp_path, port, name)
            assert ask(tmp_path, port, "client")
        finally:
            process.send_signal(signal.SIGINT)
            try:
                assert process.wait(120) == 130
            finally:
                process.kill()


def ask(folder, port, name):
    context = ssl.create_default_context(cafile=str(folder / "authority.pem"))
    if name:
        context.load_cert_chain(folder / f"{name}.pem", folder / f"{name}-key.pem")
    asked = {"ids": ["c050"], "budget_ms": 10_000}  # for busy machines
    body, headers = json.dumps(asked).encode(), {"content-type": "application/json"}
    request = urllib.request.Request(f"https://127.0.0.1:{port}/predict", body, headers)
    with urllib.request.urlopen(request, timeout=30, context=context) as answer:  # noqa: S310
        return json.load(answer)


def test_an_invalid_certificate_is_reported(call, run, tmp_path):
    for name in ("cert.pem", "key.pem"):
        (tmp_path / name).write_text("nonsense")
    shown = call("serve", run, "--tls-cert", tmp_path / "cert.pem", "--tls-key", tmp_path / "key.pem")
    assert shown.exit_code == 2
    assert "TLS: the certificate, its key or the CA cannot be used" in shown.stderr


@pytest.mark.parametrize("most_ms", [10_000.0, 1_500.0])
def test_a_shutdown_ends_before_docker_kills_the_process(most_ms):
    """The longest budget may be longer: requests that are then still open are cut off."""
    limits = ServiceLimits(budget_ms=100, batch_budget_ms=200, most_budget_ms=most_ms)
    settings = http_server.uvicorn_config(FastAPI(), None, limits)
    assert 0 < settings.timeout_graceful_shutdown <= 8
