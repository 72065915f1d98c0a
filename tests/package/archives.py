"""Compare the sdist and every wheel with the checkout: `python tests/package/archives.py DIST`.

The SQL must be the same set everywhere: it is the library's only source of statements, and people copy
it into their own migrations.
"""

from __future__ import annotations

import sys
import tarfile
import zipfile
from collections.abc import Iterable
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).parents[2]


def names_in_wheel(wheel: Path) -> set[str]:
    """Return the files of a wheel."""
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def names_in_sdist(sdist: Path) -> set[str]:
    """Return the files of an sdist, without the folder that holds them all."""
    with tarfile.open(sdist) as archive:
        return {str(PurePosixPath(*PurePosixPath(name).parts[1:])) for name in archive.getnames()}


def sql(names: Iterable[str], folder: str = "asyncpg_lease/sql") -> set[str]:
    """Return the names of the SQL files in a folder."""
    return {Path(name).name for name in names if name.startswith(f"{folder}/") and name.endswith(".sql")}


def complaints(wheel: set[str], sdist: set[str], checkout: set[str]) -> list[str]:
    """Return what is wrong with the two archives."""
    found = []
    for archive, names in {"wheel": wheel, "sdist": sdist}.items():
        if different := sql(names) ^ sql(checkout):
            found.append(f"the {archive}'s SQL differs: {sorted(different)}")
        missing = {name for name in checkout if name.startswith("asyncpg_lease/")} - names
        found += [f"the {archive} lacks {name}" for name in sorted(missing)]
    if different := sql(sdist, "sql") ^ sql(checkout):
        found.append(f"the SQL at the sdist's top differs: {sorted(different)}")
    strangers = {name.split("/")[0] for name in wheel} - {"asyncpg_lease"}
    if any(not name.endswith(".dist-info") for name in strangers):
        found.append(f"the wheel has more than the package: {sorted(strangers)}")
    wanted = ["LICENSE", "README.md", "CHANGELOG.md", "tests/conftest.py", "docs/index.md"]
    found += [f"the sdist lacks {name}" for name in wanted if not any(has(name, file) for file in sdist)]
    return found


def has(wanted: str, file: str) -> bool:
    """Tell whether a file is the one wanted or lies in the folder wanted."""
    return file == wanted or file.startswith(f"{wanted}/")


def in_checkout() -> set[str]:
    """Return the package's files in the checkout."""
    files = (path for path in (ROOT / "asyncpg_lease").rglob("*") if path.is_file())
    return {path.relative_to(ROOT).as_posix() for path in files if "__pycache__" not in path.parts}


def main(folder: Path) -> None:
    """Check the one sdist in the folder, and the wheels in it and in folders below."""
    (sdist,) = folder.glob("*.tar.gz")
    wheels = sorted(folder.rglob("*.whl"))
    found = [] if wheels else [f"there is no wheel in {folder}"]
    for wheel in wheels:
        complained = complaints(names_in_wheel(wheel), names_in_sdist(sdist), in_checkout())
        found += [f"{wheel}: {complaint}" for complaint in complained]
    if found:
        sys.exit("\n".join(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
