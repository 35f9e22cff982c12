"""Where raw files of benchmark data sets are found, and how missing ones are fetched."""

from __future__ import annotations

import os
import urllib.error
import urllib.request
import zipfile
from collections.abc import Sequence
from pathlib import Path

from sgcl.errors import InputError
from sgcl.log import log


def cache_dir() -> Path:
    """Folder for downloads: ``SGCL_CACHE``, else ``sgcl`` under the user's cache folder."""
    named = os.environ.get("SGCL_CACHE")
    return Path(named) if named else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "sgcl"


def raw_folder(name: str, folder: str, files: Sequence[str], url: str) -> Path:
    """Folder that holds ``files`` of data set ``name``, downloaded if that is possible.

    Looked for in ``$SGCL_DATA/folder``, then in the cache; neither is written to unless a download
    succeeds, which goes to the cache.

    Args:
        name: what the user called the data set, for messages.
        folder: path below a data directory, such as ``Photo/raw``.
        files: file names (or relative paths) that must all exist in it.
        url: one file, or a zip archive whose single top folder holds ``files``.

    Raises:
        InputError: files are missing and cannot be downloaded.
    """
    named = os.environ.get("SGCL_DATA")
    if named and not Path(named).is_dir():
        raise InputError(f"SGCL_DATA: {named!r} is not a folder; name the one that holds {folder!r}, or unset it")
    places = [Path(root) / folder for root in ([named] if named else [])] + [cache_dir() / "data" / folder]
    for place in places:
        if all((place / file).is_file() for file in files):
            return place
    try:
        _download(url, places[-1])
    except (OSError, urllib.error.URLError, zipfile.BadZipFile) as error:
        wanted = f"{files[0]!r}" if len(files) == 1 else f"the files {', '.join(map(repr, files))}"
        raise InputError(
            f"{name}: {wanted} cannot be downloaded from {url} ({error}); put {'it' if len(files) == 1 else 'them'} "
            f"into {places[0]}" + ("" if named else f", or into {folder} under a folder named by SGCL_DATA")
        ) from None
    if missing := [file for file in files if not (places[-1] / file).is_file()]:
        raise InputError(f"{name}: {url} did not contain {', '.join(missing)}; put them into {places[0]}")
    return places[-1]


def _download(url: str, folder: Path) -> None:
    """Fetch ``url`` into ``folder`` (a zip archive is unpacked without its top folder)."""
    folder.mkdir(parents=True, exist_ok=True)
    partial = folder / (url.rsplit("/", 1)[-1] + ".part")
    log.info("downloading %s", url)
    try:
        with urllib.request.urlopen(url, timeout=30) as answer, partial.open("wb") as out:
            while block := answer.read(1 << 20):
                out.write(block)
        if not url.endswith(".zip"):
            partial.rename(partial.with_suffix(""))
            return
        with zipfile.ZipFile(partial) as archive:
            for member in archive.infolist():
                inner = Path(*Path(member.filename).parts[1:])
                if member.is_dir() or ".." in inner.parts:
                    continue
                (folder / inner).parent.mkdir(parents=True, exist_ok=True)
                target = folder / inner
                with (
                    archive.open(member) as source,
                    target.with_suffix(target.suffix + ".part").open("wb") as out,
                ):
                    while block := source.read(1 << 20):
                        out.write(block)
                target.with_suffix(target.suffix + ".part").rename(target)
    finally:
        partial.unlink(missing_ok=True)
