"""What any figure's drawing must be."""

import re
from xml.etree import ElementTree

SVG = "{http://www.w3.org/2000/svg}"


def texts(figure):
    """Each line of text."""
    return [line for text in ElementTree.fromstring(figure.svg).iter(f"{SVG}text") for line in text.itertext()]


def check_svg(figure):
    """Well-formed, no script, nothing from elsewhere, every reference to a part that is there once."""
    assert "currentColor" not in re.sub("<text.*?</text>", "", figure.standalone_svg), "a file has no page's colour"
    assert not re.search(r"\b(nan|inf)\b", figure.alt + figure.caption), figure.alt
    root = ElementTree.fromstring(figure.standalone_svg)
    tags = {element.tag.removeprefix(SVG) for element in root.iter()}
    assert not tags & {"script", "image", "a", "use", "foreignObject", "style"}
    ids = [element.attrib["id"] for element in root.iter() if "id" in element.attrib]
    assert len(ids) == len(set(ids))
    for element in root.iter():
        for name, value in element.attrib.items():
            assert "http" not in value and "href" not in name and not name.startswith("on")
            assert "NaN" not in value and "Infinity" not in value, (figure.name, name, value)
            for target in re.findall(r"url\(([^)]*)\)", value):
                assert target.removeprefix("#") in ids and target.startswith("#")
