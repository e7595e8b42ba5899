"""An S3 server of a session's own, and what Spark and others need to get at its buckets."""

import os
import subprocess
import sys
from pathlib import Path

import boto3
import pyspark
from pyarrow.fs import S3FileSystem

from kworker.jars import Coordinate, fetch
from kworker.spark.session.archives import not_shipped
from tests.support.stores import Store

REGION, KEY, SECRET = "us-east-1", "kworker", "nobody-is-kept-out"
END_TIMEOUT_S = 60.0
# Hadoop's file system for S3, of the Hadoop in pyspark; and of Amazon's SDK what that uses.
HADOOP_AWS = Coordinate("org.apache.hadoop", "hadoop-aws", "3.4.1")
AWS_SDK = Coordinate("software.amazon.awssdk", "s3-transfer-manager", "2.25.0")
PACKAGES = {
    "spark.jars.packages": f"{HADOOP_AWS},{AWS_SDK}",
    # What Hadoop asks for instead: all of the SDK, 558 MB, where the other is 13.
    "spark.jars.excludes": "software.amazon.awssdk:bundle",
}
"""How a user has Spark fetch them."""
# Ends when its standard input does, however the one ended that started it.
_SERVER = """
import os, sys
from moto.server import ThreadedMotoServer
ThreadedMotoServer("127.0.0.1", int(sys.argv[1]), verbose=False).start()
print("ready", flush=True)
sys.stdin.read()
os._exit(0)
"""


class S3:
    """moto's server on loopback, which holds everything in memory."""

    def __init__(self, folder: Path, port: int) -> None:
        self.endpoint = f"http://127.0.0.1:{port}"
        with (folder / "log").open("w") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _SERVER, str(port)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        assert self._process.stdout
        assert self._process.stdout.readline() == "ready\n", (folder / "log").read_text()

    @property
    def spark(self) -> dict[str, str]:
        """What `[spark.conf]` has to say, but for the archives."""
        return {
            "spark.hadoop.fs.s3a.endpoint": self.endpoint,
            "spark.hadoop.fs.s3a.endpoint.region": REGION,
            "spark.hadoop.fs.s3a.access.key": KEY,
            "spark.hadoop.fs.s3a.secret.key": SECRET,
            "spark.hadoop.fs.s3a.path.style.access": "true",
        }

    def store(self, bucket: str) -> Store:
        """Creates a bucket for tables; gives also what readers have to be told."""
        keys = {"aws_access_key_id": KEY, "aws_secret_access_key": SECRET, "region_name": REGION}
        boto3.client("s3", endpoint_url=self.endpoint, **keys).create_bucket(Bucket=bucket)
        return Store(
            f"s3a://{bucket}",
            S3FileSystem(
                access_key=KEY,
                secret_key=SECRET,
                region=REGION,
                endpoint_override=self.endpoint.removeprefix("http://"),
                scheme="http",
            ),
            deltalake={
                "AWS_ENDPOINT_URL": self.endpoint,
                "AWS_ALLOW_HTTP": "true",
                "AWS_REGION": REGION,
                "AWS_ACCESS_KEY_ID": KEY,
                "AWS_SECRET_ACCESS_KEY": SECRET,
            },
            pyiceberg={
                "s3.endpoint": self.endpoint,
                "s3.region": REGION,
                "s3.access-key-id": KEY,
                "s3.secret-access-key": SECRET,
            },
            spark=self.spark,
        )

    def close(self) -> None:
        assert self._process.stdin
        self._process.stdin.close()
        self._process.wait(END_TIMEOUT_S)


def class_path() -> dict[str, str]:
    """The same from kworker's own cache, which two jobs may fill at once."""
    sdk = fetch(AWS_SDK, progress=print)
    found = not_shipped(Path(pyspark.__file__).parent / "jars", sdk)
    # Spark has what stands in for that one, too.
    own = [path for path in found if not path.name.startswith("commons-logging-")]
    both = [*fetch(HADOOP_AWS, progress=print, alone=True), *own]
    return {"spark.driver.extraClassPath": os.pathsep.join(map(str, both))}
