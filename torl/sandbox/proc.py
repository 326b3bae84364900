"""Numbers that Linux tells in files of /proc."""


def number(path: str, name: str) -> int:
    """The number in the line that begins with ``name``, in the file's own unit; 0 without such a line.

    Raises OSError when there is no such file.
    """
    with open(path, encoding="utf-8", errors="replace") as lines:
        words = (line.replace(":", " ").split() for line in lines)
        return next((int(each[1]) for each in words if each[:1] == [name]), 0)
