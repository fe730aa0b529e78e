"""A real S3 endpoint on loopback, for every test that keeps something in a bucket.

`Endpoint.start()` runs moto's server in a thread of this process. `bucket()` makes a new, empty bucket;
`environment()` is what a process needs in order to reach it by `s3://bucket/prefix` alone; `query` is the
same within the URI, for processes whose environment is not ours. The fixtures are in conftest.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pytest

_names = count()
KEYS = {"AWS_ACCESS_KEY_ID": "testing", "AWS_SECRET_ACCESS_KEY": "testing"}
NOT_OURS = ("AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_ENDPOINT_URL_S3")
"""Variables that would lead away from the endpoint, where the tests run."""


def key_file(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    """From here on the access key comes from a file, which each call rewrites; it returns the key."""
    file = folder / "credentials"
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(file))
    for name in KEYS:
        monkeypatch.delenv(name)

    def write(key: str) -> str:
        file.write_text(f"[default]\naws_access_key_id = {key}\naws_secret_access_key = testing\n")
        return key

    return write


@dataclass
class Endpoint:
    address: str
    """`127.0.0.1:port`"""
    server: Any = None

    @classmethod
    def start(cls) -> Endpoint:
        from moto.server import ThreadedMotoServer

        logging.getLogger("werkzeug").setLevel(logging.ERROR)  # a line for each request
        server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
        server.start()
        host, port = server.get_host_and_port()
        return cls(f"{host}:{port}", server)

    def stop(self) -> None:
        self.server.stop()

    @property
    def query(self) -> str:
        return f"endpoint_override={self.address}&scheme=http&region=us-east-1"

    def environment(self) -> dict[str, str]:
        return {
            **KEYS,
            "AWS_ENDPOINT_URL": f"http://{self.address}",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
            "AWS_SHARED_CREDENTIALS_FILE": "/dev/null",
            "AWS_CONFIG_FILE": "/dev/null",
        }

    def bucket(self) -> str:
        """The name of a new bucket."""
        name = f"bucket-{next(_names)}"
        self.filesystem(allow_bucket_creation=True).create_dir(name)
        return name

    def filesystem(self, **options: Any) -> Any:
        """pyarrow's file system for this endpoint, to look behind a store's back."""
        from pyarrow import fs

        return fs.S3FileSystem(
            access_key="testing",
            secret_key="testing",
            endpoint_override=self.address,
            scheme="http",
            region="us-east-1",
            **options,
        )
