"""Certificates: a cluster's authority and its API server's, and those that sign themselves."""

import datetime
import ipaddress
import os
from pathlib import Path
from typing import Any

NAMES = (
    "kubernetes",
    "kubernetes.default",
    "kubernetes.default.svc",
    "kubernetes.default.svc.cluster.local",
    "localhost",
)
YEARS = 5
AUTHORITY = "berg-local CA"


def make(folder: Path) -> None:
    """Write ca.pem, cert.pem and key.pem."""
    from cryptography import x509

    authority, server = new_key(), new_key()
    addresses = [x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    names = x509.SubjectAlternativeName([*addresses, *(x509.DNSName(name) for name in NAMES)])
    (folder / "ca.pem").write_bytes(sign(AUTHORITY, authority, authority, None))
    (folder / "cert.pem").write_bytes(sign("kube-apiserver", server, authority, names))
    descriptor = os.open(folder / "key.pem", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(private(server))


def new_key() -> Any:
    from cryptography.hazmat.primitives.asymmetric import ec

    return ec.generate_private_key(ec.SECP256R1())


def private(key: Any) -> bytes:
    """A key as files hold it."""
    from cryptography.hazmat.primitives import serialization as forms

    return key.private_bytes(forms.Encoding.PEM, forms.PrivateFormat.PKCS8, forms.NoEncryption())


def sign(subject: str, key: Any, signer: Any, names: Any) -> bytes:
    """A certificate: a server's, with `names`, by the authority, or one of who signs itself."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.serialization import Encoding
    from cryptography.x509.oid import NameOID

    def named(text: str) -> Any:
        return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])

    now, day = datetime.datetime.now(datetime.timezone.utc), datetime.timedelta(days=1)
    issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key())
    builder = (
        x509.CertificateBuilder()
        .subject_name(named(subject))
        .issuer_name(named(AUTHORITY if names else subject))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - day)
        .not_valid_after(now + 365 * YEARS * day)
        .add_extension(x509.BasicConstraints(names is None, None), True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), False)
        .add_extension(issuer, False)
    )
    if names is None:
        usage = x509.KeyUsage(True, False, False, False, False, True, True, False, False)
        builder = builder.add_extension(usage, True)
    else:
        builder = builder.add_extension(names, False)
    return builder.sign(signer, hashes.SHA256()).public_bytes(Encoding.PEM)
