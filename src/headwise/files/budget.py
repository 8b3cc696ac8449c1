"""How much memory the objects that describe a file may take: as much as the file and a little, of an index more."""

from headwise.files.errors import file_error

_SLACK = 3 << 19  # bytes besides the file's own size


class Budget:
    """Bytes that objects made of a file may still take; who makes one asks first.

    Parameters
    ----------
    held : int
        The size of the file, of an index a multiple of it.
    where, remedy : str
        What an error names, and what it says is to be done.
    """

    def __init__(self, held: int, where: str, remedy: str) -> None:
        self.most = self.left = held + _SLACK
        self.where, self.remedy = where, remedy

    def has(self, size: int) -> None:
        """Refuse a file that needs more than is left."""
        if size > self.left:
            raise file_error(self.where, f"objects of at most {self.most} bytes", "more", self.remedy)

    def take(self, size: int) -> None:
        """Take bytes for an object that stays."""
        self.has(size)
        self.left -= size
