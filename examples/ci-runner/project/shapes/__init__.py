"""The project under test."""


def area(width: float, height: float) -> float:
    """Of a rectangle."""
    if width < 0 or height < 0:
        raise ValueError("negative side")
    return width * height
